// The document: finding, copying and filling its parts, and values in words. Text from the API only ever becomes text.

export const el = (id) => document.getElementById(id);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
// set* touch the document only on a change, so that screen readers hear changes only.
export function setText(node, text) { text = String(text); if (node.textContent !== text) node.textContent = text; }
export function setHidden(node, hidden) { if (node.hidden !== hidden) node.hidden = hidden; }
export function setState(node, name, text) { setText(node, text); if (node.className !== 'state ' + name) node.className = 'state ' + name; }
export function announce(text) { setText(el('announce'), text); }
export function make(tag, text, name) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (name) node.className = name;
  return node;
}
export function copy(id) { // a template's copy, and its named elements
  const root = el(id).content.cloneNode(true);
  const named = {};
  for (const node of root.querySelectorAll('[data-el]')) named[node.dataset.el] = node;
  return { root, $: (name) => named[name] };
}
// rows makes a table's body show items: those whose key was there keep their row; where items never change, as it is.
export function rows(body, items, key, fill, fixed = false) {
  const old = new Map([...body.children].map((row) => [row.dataset.key, row]));
  body.append(...items.map((item) => {
    const k = String(key(item));
    const row = old.get(k) || make('tr');
    if (old.delete(k) && fixed) return row;
    row.dataset.key = k;
    const cells = fill(item);
    cells.forEach((c, i) => {
      let cell = row.children[i];
      if (!cell) { cell = make('td'); row.append(cell); }
      const [content, name] = Array.isArray(c) ? c : [c, ''];
      if (cell.className !== name) cell.className = name;
      if (content instanceof Node) { if (!cell.firstChild || !cell.firstChild.isEqualNode?.(content)) cell.replaceChildren(content); } else setText(cell, content);
    });
    return row;
  }));
  for (const row of old.values()) row.remove();
}

// ---- words for values ----
export const count = (n) => Number(n).toLocaleString();
export const moment = (text) => (text ? new Date(text).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' }) : '');
export const brief = (text) => new Date(text).toLocaleString(undefined, { month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit' });
export const age = (ms) => (ms < 1000 ? ms + ' ms' : ms < 120000 ? (ms / 1000).toFixed(1) + ' s' : Math.round(ms / 60000) + ' min');
function digits(currency) {
  try { return new Intl.NumberFormat(undefined, { style: 'currency', currency }).resolvedOptions().maximumFractionDigits; } catch { return 0; }
}
export function money(amount, currency) {
  if (currency === 'XXX') return '–'; // ISO 4217: none, as coupons have
  try { return new Intl.NumberFormat(undefined, { style: 'currency', currency }).format(amount / 10 ** digits(currency)); } catch { return amount + ' ' + currency; }
}
// minor is a price as somebody writes it, in minor units; major is one as it is written.
export function minor(text, currency) {
  const n = Math.round(Number(text) * 10 ** digits(currency));
  if (text === '' || !Number.isSafeInteger(n) || n < 0) throw 'Price must be a number, 0 or more.';
  return n;
}
export const major = (amount, currency) => (amount / 10 ** digits(currency)).toFixed(digits(currency));
export const stateWords = { upcoming: 'Upcoming', open: 'Open', sold_out: 'Sold out', paused: 'Paused', ended: 'Ended', closed: 'Closed', archived: 'Archived' };
export const stateOf = (sale) => (sale.archived_at ? 'archived' : sale.closed_at ? 'closed' : sale.state);

// LOOK_EVERY and SLOWLY are ms between two looks at what a view shows, and at what costs the backend more.
export const LOOK_EVERY = 2000;
export const SLOWLY = 4000;

// every runs look at once and then about each ms, for as long as alive() is true and the page is looked at.
export async function every(ms, alive, look) {
  while (alive()) {
    if (document.visibilityState === 'visible') await look();
    await sleep(ms);
  }
}
