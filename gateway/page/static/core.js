// What both views of the page need: the document, the browser's storage, the API, the server's clock, words for values.

export const el = (id) => document.getElementById(id);
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
export const jitter = (ms) => ms * (0.85 + 0.3 * Math.random());

// setText, setHidden and setDisabled touch the document only on a change, so that screen readers hear changes only.
export function setText(node, text) { if (node.textContent !== text) node.textContent = text; }
export function setHidden(node, hidden) { if (node.hidden !== hidden) node.hidden = hidden; }
export function setClass(node, name) { if (node.className !== name) node.className = name; }
export function setDisabled(button, disabled) {
  if (button.disabled === disabled) return;
  if (disabled) button.dataset.focused = document.activeElement === button ? '1' : '';
  button.disabled = disabled;
  if (!disabled && button.dataset.focused && document.activeElement === document.body) button.focus();
}
export function view(id) { // a template's copy, and its named elements
  const root = el(id).content.cloneNode(true);
  const named = {};
  for (const node of root.querySelectorAll('[data-el]')) named[node.dataset.el] = node;
  return { root, $: (name) => named[name] };
}
export function announce(text) { setText(el('announce'), text); }

// ---- storage: both stores may be refused by the browser; then memory has to do ----
const memory = {};
export function load(area, name) {
  try { return JSON.parse(window[area].getItem('floodgate.' + name)); } catch { return memory[name] ?? null; }
}
export function save(area, name, value) {
  memory[name] = value;
  try {
    if (value === null) window[area].removeItem('floodgate.' + name);
    else window[area].setItem('floodgate.' + name, JSON.stringify(value));
  } catch { /* memory has it */ }
}

// ---- the API ----
// call never throws. status 0: no answer came. wait: Retry-After in ms.
export async function call(method, path, { body, key, timeout = 10000 } = {}) {
  const gone = new AbortController();
  const timer = setTimeout(() => gone.abort(), timeout);
  try {
    const headers = { Accept: 'application/json' };
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    if (key) headers['Idempotency-Key'] = key;
    const sent = performance.now();
    const res = await fetch(path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
      credentials: 'same-origin', cache: 'no-cache', redirect: 'error', signal: gone.signal,
    });
    const heard = performance.now();
    let data = null;
    try { data = await res.json(); } catch { /* an empty or foreign body: the status speaks */ }
    const seconds = Number(res.headers.get('Retry-After'));
    return {
      status: res.status, ok: res.ok, data: data || {}, sent, heard,
      code: res.ok ? '' : (data && data.code) || 'INTERNAL', wait: seconds > 0 ? seconds * 1000 : 0,
    };
  } catch {
    return { status: 0, ok: false, data: {}, code: 'NO_ANSWER', wait: 0 };
  } finally {
    clearTimeout(timer);
  }
}

export const words = {
  UNAUTHENTICATED: 'Please sign in first.',
  FORBIDDEN: 'You are not allowed to do this.',
  SALE_NOT_FOUND: 'There is no such sale.',
  ORDER_NOT_FOUND: 'This order is not known. Please reload the page.',
  NOT_FOUND: 'This is not available here.',
  SALE_NOT_STARTED: 'The sale has not started yet. Nothing was ordered.',
  SALE_ENDED: 'The sale has ended. Nothing was ordered.',
  SOLD_OUT: 'Sold out right now. Units can come back when somebody cancels or does not pay.',
  ALREADY_ORDERED: 'You already have an order in this sale. Here it is.',
  TOO_MANY_ORDERS: 'Too many of your orders in this sale were cancelled or not paid. No other is taken. An order that you hold stays yours.',
  RATE_LIMITED: 'That was too fast. Nothing was ordered; please wait a moment and press again.',
  OVERLOADED: 'Very busy at the moment. Nothing was ordered; please press again in a moment.',
  OUTCOME_UNKNOWN: 'The answer got lost on the way. Asking again for the same order…',
  NO_ANSWER: 'No answer from the server. Please check your connection.',
  IDEMPOTENCY_KEY_REUSED: 'Your earlier order was for another quantity. Here it is, if it was accepted.',
  INSUFFICIENT_STOCK: 'Not that many are left. Please try a smaller quantity.',
  BAD_REQUEST: 'The server did not understand this request.',
  PAYLOAD_TOO_LARGE: 'The request was too large.',
  METHOD_NOT_ALLOWED: 'The server does not allow this here.',
  UNSUPPORTED_MEDIA_TYPE: 'The server did not understand this request.',
  ORDER_STATE_CONFLICT: 'The order has changed in the meantime.',
  PRECONDITION_FAILED: 'It has changed in the meantime. Please reload the page.',
  UNITS_AVAILABLE: 'There is something left right now: press to order it.',
  STANDBY_FULL: 'The standby line is full. Somebody may leave it: try again later.',
  NOT_IN_LINE: 'You are not in the standby line.',
  INTERNAL: 'Something broke on our side. Please try again in a moment.',
};
export const say = (res) => words[res.code] || (res.data && res.data.title) || words.INTERNAL;

// ---- the server's clock ----
// base is what the server's clock said when performance.now() was 0. The answer is taken to be half a round trip old.
export const clock = { base: Date.now() - performance.now(), best: Infinity, known: false };
export const now = () => clock.base + performance.now();
export async function setClock() {
  let best = Infinity, base = clock.base;
  for (let i = 0; i < 3; i++) { // of three, the shortest round trip errs least
    const res = await call('GET', '/v1/time');
    const server = Date.parse(res.data.now);
    if (!res.ok || !Number.isFinite(server)) continue;
    const trip = res.heard - res.sent;
    if (trip < best) { best = trip; base = server + trip / 2 - res.heard; }
  }
  if (best < Infinity) { clock.base = base; clock.known = true; }
}

// ---- words for values ----
export function money(amount, currency) {
  if (amount === 0) return 'Free';
  try {
    const f = new Intl.NumberFormat(undefined, { style: 'currency', currency });
    return f.format(amount / 10 ** f.resolvedOptions().maximumFractionDigits);
  } catch { return amount + ' ' + currency; }
}
export function span(ms) { // 1 d 02:03:04, 02:03:04 or 02:03; never shows 00:00 before it is over
  const s = Math.max(0, Math.ceil(ms / 1000));
  const two = (n) => String(n).padStart(2, '0');
  const hms = (s >= 3600 ? two(Math.floor(s % 86400 / 3600)) + ':' : '') + two(Math.floor(s % 3600 / 60)) + ':' + two(s % 60);
  return s >= 86400 ? Math.floor(s / 86400) + ' d ' + hms : hms;
}
export const moment = (text) => new Date(text).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' });
// phase is the sale's state; the clock is ahead of the last look at the sale.
export function phase(sale) {
  if (sale.state === 'ended' || now() >= Date.parse(sale.ends_at)) return 'ended';
  if (sale.state === 'paused') return 'paused';
  if (now() < Date.parse(sale.starts_at)) return 'upcoming';
  return sale.state === 'upcoming' ? 'open' : sale.state;
}
export const phaseWords = { upcoming: 'Soon', open: 'Open', sold_out: 'Sold out', paused: 'Paused', ended: 'Ended' };
export function whenWords(sale) {
  switch (phase(sale)) {
    case 'upcoming': return 'Starts in ' + span(Date.parse(sale.starts_at) - now());
    case 'ended': return 'Ended';
    default: {
      const next = Date.parse(sale.next_release_at);
      if (next > now()) return 'More in ' + span(next - now());
      return 'Ends ' + moment(sale.ends_at);
    }
  }
}
