// Charts: lines over time, and where the units of a total are.

import { age, count, make, setText } from './page.js';

const POINTS = 300; // of a chart

// chart draws what was added to it: { series: [names] }. Each point is { at, values by name }.
export function chart(svg, caption, names, top) {
  const points = [];
  const lines = names.map((name) => {
    const line = document.createElementNS('http://www.w3.org/2000/svg', 'polyline');
    line.setAttribute('class', name);
    svg.append(line);
    return line;
  });
  return (values) => {
    points.push({ at: Date.now(), ...values });
    if (points.length > POINTS) points.shift();
    const first = points[0].at, spanned = Math.max(1, points.at(-1).at - first);
    const high = Math.max(1, top ? top(values) : 0, ...points.flatMap((p) => names.map((n) => p[n])));
    names.forEach((name, i) => {
      lines[i].setAttribute('points', points.map((p) => ((p.at - first) / spanned * 600).toFixed(1) + ',' + (136 - p[name] / high * 132).toFixed(1)).join(' '));
    });
    setText(caption, points.length < 2 ? 'Since this view was opened.' : 'The last ' + age(spanned) + '; the top is ' + count(high) + '.');
  };
}

// stack draws the parts of a total; what is left of it is available.
export function stack(node, total, parts) {
  if (node.children.length === 0) for (const name of Object.keys(parts)) node.append(make('span', undefined, name));
  for (const part of node.children) part.style.width = parts[part.className] / Math.max(1, total) * 100 + '%';
  const left = total - Object.values(parts).reduce((sum, n) => sum + n, 0);
  node.title = Object.entries(parts).map(([name, n]) => count(n) + ' ' + name + ', ').join('') + count(left) + ' available';
  node.setAttribute('aria-label', node.title);
}
