// The flood: what the gateways answer and refuse, who presses most, and how each gateway is.

import { api, told } from './api.js';
import { chart } from './chart.js';
import { live } from './live.js';
import { age, copy, count, el, make, rows, setHidden, setText } from './page.js';

const rate = (n) => (n >= 100 ? count(Math.round(n)) : n.toLocaleString(undefined, { maximumFractionDigits: 1 }));
const sum = (rates) => Object.values(rates || {}).reduce((a, b) => a + b, 0);
const words = (name) => name.replaceAll('_', ' ');
const ordered = (rates) => Object.entries(rates).sort((a, b) => b[1] - a[1]);

export function flood(alive) {
  const { root, $ } = copy('flood-view');
  el('main').replaceChildren(root);
  const add = chart($('chart'), $('chart-words'), ['accepted', 'refused']);
  const parts = (p) => ({ at: Date.parse(p.at), accepted: p.presses.ok || 0, refused: sum(p.presses) - (p.presses.ok || 0) });
  const fill = (name, items, key, cells) => {
    rows($(name), items, key, cells);
    setHidden($('no-' + name), items.length > 0);
  };
  const table = (name, rates, all) => fill(name, ordered(rates), ([key]) => key, ([key, n]) => [words(key), [rate(n), 'n'], [(n / Math.max(all, 0.01) * 100).toFixed(1) + ' %', 'n']]);
  const draw = () => {
    const s = live.last;
    if (!s) return;
    const all = sum(s.presses);
    setText($('presses'), rate(all));
    setText($('accepted'), rate(s.presses.ok || 0));
    setText($('refused'), rate(all - (s.presses.ok || 0)));
    setText($('connections'), count(s.gateways.reduce((n, g) => n + g.connections, 0)));
    table('answers', s.presses, all);
    table('rules', s.refusals, sum(s.refusals));
    for (const name of ['uids', 'networks']) {
      fill(name, s[name], (c) => c.name, (c) => [make('code', c.name), [count(c.requests), 'n'], [count(c.refused), 'n']]);
    }
    const differ = (what) => new Set(s.gateways.map((g) => g[what])).size > 1;
    const warnings = [];
    if (differ('version')) warnings.push('The gateways are of different versions.');
    if (differ('hash')) warnings.push('The gateways have different configurations.');
    for (const g of s.gateways) {
      if (g.silent_ms > 5000) warnings.push(g.name + ' has been silent for ' + age(g.silent_ms) + '.');
      else if (g.feed_age_ms < 0 || g.feed_age_ms > 15000) warnings.push(g.name + ' has no fresh feed.');
    }
    setHidden($('warnings'), warnings.length === 0);
    setText($('warnings'), warnings.join(' '));
    fill('gateways', s.gateways, (g) => g.name, (g) => [[g.name, 'text'], [g.presses ? rate(sum(g.presses)) : '–', 'n'], [g.presses ? rate(g.presses.ok || 0) : '–', 'n'],
      [count(g.connections) + ' of ' + count(g.max_connections), 'n'], [g.feed_age_ms < 0 ? 'never' : age(g.feed_age_ms), 'n'], [age(g.silent_ms), 'n'], g.version,
      g.generation + ', ' + g.hash.slice(0, 8)]);
  };
  const look = async () => { // without the stream there are no rates, only that the API answers
    told(await api('GET', '/gateways'));
    if (alive()) draw();
  };
  look.begin = () => add.from(live.history.map(parts));
  look.live = () => { add(parts(live.last)); draw(); };
  return look;
}
