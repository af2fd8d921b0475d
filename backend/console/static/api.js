// The admin API, in the session of this browser.

import { el, setHidden, setText } from './page.js';

// newKey is an Idempotency-Key; crypto.randomUUID is not there where the console is not on localhost or behind TLS.
export const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, '0')).join('');

// me is who is logged in, as /admin/v1/session says it: {name, role}; null: nobody. The session itself is in a cookie that no script sees.
export let me = null;
export function know(who) {
  me = who;
  setText(el('me'), !who ? '' : who.name === who.role ? who.name : who.name + ', ' + who.role);
  if (who) document.body.dataset.role = who.role; else delete document.body.dataset.role; // what the role may not do is disabled by it
}

// call never throws; status 0: no answer came.
export async function call(method, path, { body, key, version, as = 'json', timeout = 35000 } = {}) {
  const gone = new AbortController();
  const timer = setTimeout(() => gone.abort(), timeout);
  const headers = {};
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (key) headers['Idempotency-Key'] = key;
  if (version) headers['If-Match'] = '"' + version + '"';
  try {
    const res = await fetch(path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: 'no-store', redirect: 'error', signal: gone.signal,
    });
    let data = {};
    try { data = res.ok && as === 'blob' ? await res.blob() : await res.json(); } catch (e) { if (res.ok) throw e; }
    if (res.status === 401 && me !== null) dispatchEvent(new Event('refused'));
    return { status: res.status, ok: res.ok, data };
  } catch {
    return { status: 0, ok: false, data: {} };
  } finally {
    clearTimeout(timer);
  }
}
export const api = (method, path, options) => call(method, '/admin/v1' + path, options);
export const say = (res) => (res.status === 0 ? 'No answer from the backend.' : (res.data.field ? res.data.field + ': ' : '') + (res.data.detail || res.data.title || 'It answered ' + res.status + '.'));
export const lost = (res) => res.status === 0 || res.data.code === 'OUTCOME_UNKNOWN';

// told shows, or takes back, that the view cannot be kept up to date.
export function told(res) {
  setHidden(el('lost'), res.ok);
  if (!res.ok) setText(el('lost'), 'What you see is not up to date: ' + say(res));
  return res.ok;
}

// pages reads the first n pages of a list: its items, and where the next page begins; or a refusal.
export async function pages(path, member, n) {
  const items = [];
  let next = '';
  do {
    const res = await api('GET', path + (next ? (path.includes('?') ? '&' : '?') + 'cursor=' + next : ''));
    if (!res.ok) return res;
    items.push(...res.data[member]);
    next = res.data.next;
  } while (next && --n > 0);
  return { ok: true, items, next };
}

// patch is what sends a form's changes of something: seconds count of its times, as inputs have no more.
export const patch = (path, before) => (values, key) => {
  const changed = {};
  for (const [name, value] of Object.entries(values)) {
    const same = /_at$|^valid_/.test(name) ? Math.floor(Date.parse(before[name]) / 1000) === Math.floor(Date.parse(value) / 1000) : before[name] === value;
    if (!same) changed[name] = value;
  }
  if (Object.keys(changed).length === 0) return { ok: false, status: 400, data: { detail: 'Nothing is different.' } };
  return api('PATCH', path, { body: changed, key, version: before.version });
};
