// The log of changes.

import { api, told } from './api.js';
import { copy, el, make, moment, rows, setHidden } from './page.js';

export function log(alive) {
  const { root, $ } = copy('log-view');
  el('main').replaceChildren(root);
  let entries = [], next = '';
  // What a value does to the direction of its text ends with it.
  const word = (v) => make('bdi', v === undefined ? '–' : typeof v === 'string' ? v : JSON.stringify(v));
  const list = (node, parts) => {
    parts.forEach((part, i) => node.append(i ? '; ' : '', ...part));
    return node;
  };
  const changes = (e) => {
    const { before, after } = e;
    if (before) {
      return list(make('span'), Object.keys({ ...before, ...after }).filter((k) => JSON.stringify(before[k]) !== JSON.stringify((after || {})[k]))
        .map((k) => [k + ': ', word(before[k]), ' → ', word((after || {})[k])]));
    }
    const all = Object.entries(after || {}).map(([k, v]) => [k + ': ', word(v)]);
    if (all.length < 4) return list(make('span'), all);
    const box = make('details'), summary = make('summary');
    summary.append(...(after.title ? [word(after.title)] : all[0].map((part) => part.cloneNode?.(true) ?? part)));
    box.append(summary);
    return list(box, all);
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
    setHidden($('empty'), entries.length > 0);
    rows($('rows'), entries, (e) => e.id, (e) => [moment(e.at), e.role ? e.who + ', ' + e.role : e.who, e.action, e.target, [changes(e), 'text']], true);
  };
  $('more').addEventListener('click', () => page(next));
  return () => page('');
}
