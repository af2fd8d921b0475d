// Asking before a change. Each change has one Idempotency-Key, which a second try after a lost answer keeps.

import { lost, newKey, say } from './api.js';
import { announce, el, make, setText } from './page.js';

// ask opens a dialog, and sends what its form says until it is done or given up: { title, words, ok, danger, fields: [{ name,
// label, type, value, options, lines, read }], send: (values, key) => answer, done: (data) => {} }. What reads a field may throw words.
export function ask({ title, words = '', ok, danger = false, fields = [], send, done = () => {} }) {
  setText(el('ask-title'), title);
  setText(el('ask-words'), words);
  setText(el('ask-ok'), ok);
  setText(el('ask-error'), '');
  el('ask-ok').disabled = false;
  el('ask-ok').className = danger ? 'quiet danger' : 'primary';
  const inputs = new Map();
  el('ask-fields').replaceChildren(...fields.map((f) => {
    const label = make('label', f.label);
    const input = make(f.options ? 'select' : f.lines ? 'textarea' : 'input');
    for (const o of f.options || []) input.append(make('option', o));
    if (f.lines) input.rows = f.lines; else if (!f.options) input.type = f.type || 'text';
    if (f.type === 'number') { input.min = f.min ?? 1; input.step = 1; }
    if (f.type === 'datetime-local') input.step = 1;
    input.value = f.value ?? '';
    label.append(input);
    inputs.set(f.name, input);
    return label;
  }));
  let key = newKey();
  let last = '';
  el('ask-form').onsubmit = async (event) => {
    event.preventDefault();
    const values = {};
    try {
      for (const f of fields) values[f.name] = f.read ? f.read(inputs.get(f.name).value.trim(), inputs) : inputs.get(f.name).value.trim();
    } catch (problem) {
      setText(el('ask-error'), problem);
      return;
    }
    const now = JSON.stringify(values);
    if (now !== last) key = newKey(); // other words are another change
    last = now;
    el('ask-ok').disabled = true;
    const res = await send(values, key);
    el('ask-ok').disabled = false;
    if (!res.ok) {
      setText(el('ask-error'), say(res) + (lost(res) ? ' It may have been done: sending it again is safe.' : ''));
      if (!lost(res)) last = ''; // it was refused: a further try is another change
      return;
    }
    el('ask').close();
    announce(title + ': done');
    done(res.data);
  };
  el('ask').showModal();
  (inputs.size ? [...inputs.values()][0] : el('ask-no')).focus();
}
el('ask-no').addEventListener('click', () => el('ask').close());

// Readers of fields: what an input's text says, or words thrown.
export const units = (name) => (text) => {
  const n = Number(text);
  if (!Number.isSafeInteger(n) || n < 1) throw name + ' must be a whole number, 1 or more.';
  return n;
};
export const time = (name) => (text) => {
  const t = new Date(text);
  if (Number.isNaN(t.getTime())) throw name + ' must be a date and a time.';
  return t.toISOString();
};
export const forInput = (date) => new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19);

export const needed = (name) => (text) => { if (!text) throw name + ': it needs one.'; return text; };
export const yes = (text) => text === 'yes';
const MOST_UIDS = 800; // of one request
export const uids = (text) => {
  const list = [...new Set(text.split(/[\s,;]+/).filter(Boolean))];
  for (const uid of list) if (!/^[A-Za-z0-9._-]{1,64}$/.test(uid)) throw '"' + uid.slice(0, 80) + '" is no uid: it is 1 to 64 of A-Z, a-z, 0-9 and . _ -';
  if (list.length > MOST_UIDS) throw list.length + ' shoppers are more than the ' + MOST_UIDS + ' that one change takes. The command line takes files: backend eligible --help, backend bans --help.';
  return list;
};
