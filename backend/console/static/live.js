// What the backend tells by itself: server-sent events of /admin/v1/live. While they do not come, views ask instead.

import { el, setHidden, setState, setText } from './page.js';

const AGAIN_AFTER = 5000; // ms until a stream that was refused is asked for again
const QUIET_AFTER = 15000; // ms without an event: the stream is dead

// live is what was told last: points of the charts, the last sample, which backend, and whether it goes on.
export const live = { on: false, backend: '', history: [], last: null };
const points = 180;
let source = null, timer = 0, watch = 0;

function turn(on, why = '') {
  live.on = on;
  setState(el('live'), on ? 'good' : 'warn', on ? 'Live' : 'Not live');
  setHidden(el('stale'), on || !why);
  setText(el('stale'), why);
}
function heard() {
  clearTimeout(watch);
  watch = setTimeout(() => { stop(); turn(false, 'Nothing is told any more: the page asks every two seconds instead.'); timer = setTimeout(listen, AGAIN_AFTER); }, QUIET_AFTER);
}
function stop() {
  source?.close();
  source = null;
  clearTimeout(timer);
  clearTimeout(watch);
}
// quiet ends the stream: nobody is logged in.
export function quiet() {
  stop();
  turn(false);
  setState(el('live'), '', '');
  live.last = null;
  live.history = [];
}
// listen begins the stream, and again whenever it breaks off.
export function listen() {
  stop();
  if (!live.on) setState(el('live'), 'warn', 'Not live'); // it takes its place at once, so that nothing moves when it is
  source = new EventSource('/admin/v1/live');
  source.addEventListener('begin', (event) => {
    const begin = JSON.parse(event.data);
    Object.assign(live, { backend: begin.backend, history: begin.history, last: begin.last });
    turn(true);
    heard();
    dispatchEvent(new Event('live-begin'));
  });
  source.addEventListener('sample', (event) => {
    live.last = JSON.parse(event.data);
    const at = Date.parse(live.last.at);
    if (live.history.length === 0 || at - Date.parse(live.history.at(-1).at) >= 4500) {
      live.history.push(point(live.last));
      if (live.history.length > points) live.history.shift();
    }
    heard();
    dispatchEvent(new Event('live-sample'));
  });
  source.addEventListener('error', () => {
    turn(false, 'The live stream broke off: the page asks every two seconds until it is back.');
    if (source?.readyState === EventSource.CLOSED) { stop(); timer = setTimeout(listen, AGAIN_AFTER); } // refused: too many listen, or the backend is not ready
  });
}
const point = (s) => ({
  at: s.at, presses: s.presses, depth: s.queue ? s.queue.depth : -1, oldest_age_ms: s.queue ? s.queue.oldest_age_ms : -1,
  sales: s.sales.map((one) => ({ id: one.id, sold: one.sold, locked: one.locked, queued: Math.min(one.available, queuedOf(one.id)) })),
});
// queuedOf is how many orders of a sale are on their way.
export const queuedOf = (id) => live.last?.queue?.outboxes.find((o) => o.sale_id === id)?.depth || 0;
