// What both views of the page need: the document, its words, the browser's storage, the API, the server's clock. It stands
// before app.js in one script, and after STRINGS, the table of every string: key -> [English, Chinese].

const el = (id) => document.getElementById(id);
const jitter = (ms) => ms * (0.85 + 0.3 * Math.random());
// SERVER is what the gateway's limits say: for how many ms each button pauses after a press.
const SERVER = JSON.parse(document.querySelector('meta[name="floodgate"]').content);

// wakers end every sleep: the browser is online again.
const wakers = new Set();
const sleep = (ms) => new Promise((done) => {
  const wake = () => { clearTimeout(timer); wakers.delete(wake); done(); };
  const timer = setTimeout(wake, ms);
  wakers.add(wake);
});
addEventListener('online', () => { for (const wake of [...wakers]) wake(); });

// setText, setHidden and setDisabled touch the document only on a change, so that screen readers hear changes only.
function setText(node, text) { if (node.textContent !== text) node.textContent = text; }
function setHidden(node, hidden) { if (node.hidden !== hidden) node.hidden = hidden; }
function setClass(node, name) { if (node.className !== name) node.className = name; }
function setDisabled(button, disabled) {
  if (button.disabled === disabled) return;
  if (disabled) button.dataset.focused = document.activeElement === button ? '1' : '';
  button.disabled = disabled;
  if (!disabled && button.dataset.focused && document.activeElement === document.body) button.focus();
}
function view(id) { // a template's copy, and its named elements
  const root = el(id).content.cloneNode(true);
  const named = {};
  for (const node of root.querySelectorAll('[data-el]')) named[node.dataset.el] = node;
  translate(root);
  return { root, $: (name) => named[name] };
}
function announce(text) { setText(el('announce'), text); }

// ---- storage: the browser may refuse it, or may have no room; then this tab's memory has to do ----
const memory = {};
function load(name) {
  if (name in memory) return memory[name];
  try { return JSON.parse(localStorage.getItem('floodgate.' + name)); } catch { return null; }
}
function save(name, value) {
  try {
    if (value === null) localStorage.removeItem('floodgate.' + name);
    else localStorage.setItem('floodgate.' + name, JSON.stringify(value));
    delete memory[name];
  } catch { memory[name] = value; }
}
// stored is the names that begin with a prefix.
function stored(prefix) {
  try { return Object.keys(localStorage).filter((k) => k.startsWith('floodgate.' + prefix)).map((k) => k.slice(10)); } catch { return []; }
}

// ---- words ----
const LANGUAGES = ['en', 'zh-CN'];
const preferred = () => (navigator.languages || []).map((l) => /^zh/i.test(l) ? 1 : /^en/i.test(l) ? 0 : -1).find((l) => l >= 0) ?? 0;
let language = LANGUAGES.indexOf(load('lang'));
if (language < 0) language = preferred();
const has = (key) => Object.hasOwn(STRINGS, key);
// t is a string of the table, with its {names} replaced.
const t = (key, values = {}) => STRINGS[key][language].replace(/\{(\w+)\}/g, (_, name) => values[name]);
// locale is what dates, numbers and money are written by: the shopper's own kind of the language, where the browser says it.
const locale = () => (navigator.languages || []).find((l) => language === 0 && /^en/i.test(l)) || LANGUAGES[language];
function translate(root) {
  for (const node of root.querySelectorAll('[data-t]')) setText(node, t(node.dataset.t));
}
const say = (res) => has('problem.' + res.code) ? 'problem.' + res.code : 'problem.INTERNAL';

function money(amount, currency) {
  if (amount === 0) return t('free');
  try {
    const f = new Intl.NumberFormat(locale(), { style: 'currency', currency });
    return f.format(amount / 10 ** f.resolvedOptions().maximumFractionDigits);
  } catch { return amount + ' ' + currency; }
}
function span(ms) { // 1 d 02:03:04, 02:03:04 or 02:03; never shows 00:00 before it is over
  const s = Math.max(0, Math.ceil(ms / 1000));
  const two = (n) => String(n).padStart(2, '0');
  const hms = (s >= 3600 ? two(Math.floor(s % 86400 / 3600)) + ':' : '') + two(Math.floor(s % 3600 / 60)) + ':' + two(s % 60);
  return s >= 86400 ? t('days', { n: Math.floor(s / 86400) }) + ' ' + hms : hms;
}
const about = (ms) => ms < 90000 ? t('about.s', { n: Math.ceil(ms / 5000) * 5 }) : t('about.min', { n: Math.round(ms / 60000) });
const moment = (text) => new Date(text).toLocaleString(locale(), { dateStyle: 'medium', timeStyle: 'short' });
const seconds = (ms) => Math.ceil(ms / 1000);

// ---- the API ----
// call never throws. status 0: no answer came. wait: Retry-After in ms.
async function call(method, path, { body, key, timeout = 10000 } = {}) {
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
    const after = Number(res.headers.get('Retry-After'));
    return {
      status: res.status, ok: res.ok, data: data || {}, sent, heard,
      code: res.ok ? '' : (data && data.code) || 'INTERNAL', wait: after > 0 ? after * 1000 : 0,
    };
  } catch {
    return { status: 0, ok: false, data: {}, code: 'NO_ANSWER', wait: 0 };
  } finally {
    clearTimeout(timer);
  }
}

// ---- the server's clock ----
// base is what the server's clock said when performance.now() was 0. The answer is taken to be half a round trip old.
const clock = { base: Date.now() - performance.now(), known: false };
const now = () => clock.base + performance.now();
async function setClock() {
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

// phase is the sale's state; the clock is ahead of the last look at the sale.
function phase(sale) {
  if (sale.state === 'ended' || now() >= Date.parse(sale.ends_at)) return 'ended';
  if (sale.state === 'paused') return 'paused';
  if (now() < Date.parse(sale.starts_at)) return 'upcoming';
  return sale.state === 'upcoming' ? 'open' : sale.state;
}
const phaseWords = (p) => has('phase.' + p) ? t('phase.' + p) : p;
function whenWords(sale) {
  switch (phase(sale)) {
    case 'upcoming': return t('sale.starts', { span: span(Date.parse(sale.starts_at) - now()) });
    case 'ended': return t('phase.ended');
    default: {
      const next = Date.parse(sale.next_release_at);
      return next > now() ? t('sale.more', { span: span(next - now()) }) : t('sale.ends', { at: moment(sale.ends_at) });
    }
  }
}
