// The log of changes.

import { api, told } from './api.js';
import { copy, el, make, moment, rows, setHidden } from './page.js';

export function log(alive) {
  const { root, $ } = copy('log-view');
  el('main').replaceChildren(root);
  let entries = [], next = '';
  const word = (v) => (v === undefined ? '–' : typeof v === 'string' ? v : JSON.stringify(v));
  const changes = (e) => {
    const { before, after } = e;
    if (before) {
      return Object.keys({ ...before, ...after }).filter((k) => JSON.stringify(before[k]) !== JSON.stringify((after || {})[k]))
        .map((k) => k + ': ' + word(before[k]) + ' → ' + word((after || {})[k])).join('; ');
    }
    const all = Object.entries(after || {}).map(([k, v]) => k + ': ' + word(v));
    if (all.length < 4) return all.join('; ');
    const box = make('details');
    box.append(make('summary', after.title || all[0]), all.join('; '));
    return box;
  };
  const page = async (cursor) => {
    const res = await api('GET', '/audit-log?limit=50' + (cursor ? '&cursor=' + cursor : ''));
    if (!alive() || !told(res)) return;
    if (cursor) { entries.push(...res.data.entries); next = res.data.next; } else {
      const known = new Set(entries.map((e) => e.id));
      const fresh = res.data.entries.filter((e) => !known.has(e.id));
      if (entries.length === 0) next = res.data.next;
      entries = [...fresh, ...entries];
    }
    setHidden($('more'), !next);
    rows($('rows'), entries, (e) => e.id, (e) => [moment(e.at), e.role ? e.who + ', ' + e.role : e.who, e.action, e.target, [changes(e), 'text']], true);
  };
  $('more').addEventListener('click', () => page(next));
  return () => page('');
}
