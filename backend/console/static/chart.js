// Charts: lines over time, and where the units of a total are.

import { live } from './live.js';
import { age, count, make, setText } from './page.js';

const POINTS = 400; // of a chart
const SPAN = 900000; // ms that it shows, at most

// chart draws what was added to it: { series: [names] }. Each point is { at, values by name }.
export function chart(svg, caption, names, top) {
  const points = [];
  const lines = names.map((name) => {
    const line = document.createElementNS('http://www.w3.org/2000/svg', 'polyline');
    line.setAttribute('class', name);
    svg.append(line);
    return line;
  });
  const add = (values) => {
    points.push({ at: live.on && live.last ? Date.parse(live.last.at) : Date.now(), ...values });
    while (points.length > POINTS || points.at(-1).at - points[0].at > SPAN) points.shift();
    draw(values);
  };
  // from begins the chart anew with points that there were.
  add.from = (before) => {
    points.splice(0, points.length, ...before);
    if (points.length > 0) draw(points.at(-1));
  };
  const draw = (values) => {
    const first = points[0].at, spanned = Math.max(1, points.at(-1).at - first);
    const high = Math.max(1, top ? top(values) : 0, ...points.flatMap((p) => names.map((n) => p[n])));
    names.forEach((name, i) => {
      lines[i].setAttribute('points', points.map((p) => ((p.at - first) / spanned * 600).toFixed(1) + ',' + (136 - p[name] / high * 132).toFixed(1)).join(' '));
    });
    setText(caption, points.length < 2 ? 'It begins now.' : 'The last ' + age(spanned) + (live.backend ? ', as backend ' + live.backend + ' saw it' : '') + '; the top is ' + count(Math.ceil(high)) + '.');
  };
  return add;
}

// stack draws the parts of a total; what is left of it is available.
export function stack(node, total, parts) {
  node.setAttribute('role', 'img');
  if (node.children.length === 0) for (const name of Object.keys(parts)) node.append(make('span', undefined, name));
  for (const part of node.children) part.style.width = parts[part.className] / Math.max(1, total) * 100 + '%';
  const left = total - Object.values(parts).reduce((sum, n) => sum + n, 0);
  node.title = Object.entries(parts).map(([name, n]) => count(n) + ' ' + name + ', ').join('') + count(left) + ' available';
  node.setAttribute('aria-label', node.title);
}
