// The operator's console. It uses the admin API like any client, in the session of a cookie; what it shows is what that said last.
// This file decides what is shown; each view has its own. What a role may not do is disabled; the API refuses it in any case.

import { api, call, know, me, say } from './api.js';
import { events } from './events.js';
import { flood } from './flood.js';
import { listen, live, quiet } from './live.js';
import { log } from './log.js';
import { orders, payments } from './orders.js';
import { LOOK_EVERY, copy, count, el, every, setHidden, setState, setText } from './page.js';
import { letters, queue } from './queue.js';
import { sale } from './sale.js';
import { sales } from './sales.js';
import { shoppers } from './shoppers.js';
import { sku, skus } from './skus.js';

const HEALTH_EVERY = 5000; // ms between two looks at readiness and dead letters

// A view draws into main; what it returns looks again, for as long as alive() is true.
const views = { sales, skus, orders, payments, shoppers, flood, queue, letters, events, log };
const details = { sales: sale, skus: sku };

let tell = null; // the view that is shown, where live samples are for it
addEventListener('live-begin', () => tell?.begin?.());
addEventListener('live-sample', () => {
  tell?.live();
  if (live.last.queue) deadLetters(live.last.queue.dead_letters);
});
function deadLetters(n) {
  setHidden(el('letters-count'), n === 0);
  setText(el('letters-count'), count(n));
}

// What the role may not do stays to be seen, disabled, and says why when it is pressed.
const RANKS = ['viewer', 'operator', 'admin'];
function permit() {
  for (const button of document.querySelectorAll('[data-needs]')) {
    const may = me !== null && RANKS.indexOf(me.role) >= RANKS.indexOf(button.dataset.needs);
    const why = may ? '' : 'This needs the role ' + button.dataset.needs + '; you are ' + (me ? me.role : 'nobody') + '.';
    if (button.title === why) continue;
    button.title = why;
    if (may) button.removeAttribute('aria-disabled'); else button.setAttribute('aria-disabled', 'true');
  }
}
new MutationObserver(permit).observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ['data-needs', 'data-role'] });
let denied = 0;
document.addEventListener('click', (event) => {
  const button = event.target.closest?.('[aria-disabled="true"]');
  if (!button) return;
  event.preventDefault();
  event.stopPropagation();
  setText(el('denied'), button.title);
  setHidden(el('denied'), false);
  clearTimeout(denied);
  denied = setTimeout(() => setHidden(el('denied'), true), 6000);
}, true);

let shown = 0; // counts views: an older one is not alive
function route() {
  const mine = ++shown;
  const alive = () => mine === shown;
  setHidden(el('lost'), true);
  document.title = 'Floodgate console';
  if (el('ask').open) el('ask').close();
  setHidden(el('nav'), me === null);
  setHidden(el('leave'), me === null);
  setHidden(el('denied'), true);
  tell = null;
  if (me === null) { quiet(); enter(); return; }
  const [path, query = ''] = location.hash.slice(1).split('?');
  const [, name = '', id = ''] = path.split('/');
  for (const link of el('nav').children) {
    if (link.getAttribute('href') === '#/' + (name || 'sales')) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  const detail = /^[1-9]\d{0,15}$/.test(id) && Object.hasOwn(details, name);
  const view = Object.hasOwn(views, name) ? views[name] : sales;
  const look = detail ? details[name](alive, Number(id)) : view(alive, new URLSearchParams(query));
  tell = look?.live ? look : null;
  if (live.on) look?.begin?.();
  let asked = false;
  if (look) every(LOOK_EVERY, alive, async () => {
    if (asked && live.on && look.live) return; // it is told
    asked = true;
    await look();
  });
  el('main').focus({ preventScroll: true });
}

function enter(why = '') {
  const { root, $ } = copy('enter-view');
  el('main').replaceChildren(root);
  setText($('error'), why);
  $('form').addEventListener('submit', async (event) => {
    event.preventDefault();
    const value = $('token').value.trim();
    if (!value) { setText($('error'), 'Please fill this in.'); return; }
    $('ok').disabled = true;
    const res = await api('POST', '/session', { body: { token: value } });
    const kept = res.ok ? await api('GET', '/session') : res;
    $('ok').disabled = false;
    if (!kept.ok) {
      setText($('error'), res.ok && kept.status === 401 ? 'The browser keeps no session here: the console needs HTTPS, or localhost.' : res.status === 401 ? 'This is no operator\'s token.' : say(kept));
      return;
    }
    know(kept.data);
    listen();
    route();
  });
  $('token').focus();
}
function leave(why) {
  know(null);
  route();
  if (why) setText(el('main').querySelector('[data-el=error]'), why);
}
el('leave').addEventListener('click', async () => {
  const res = await api('DELETE', '/session', { timeout: 4000 });
  leave(res.ok ? '' : 'The session was not ended: ' + say(res));
});
addEventListener('hashchange', route);
addEventListener('refused', () => leave('The session has ended.'));

// ---- how the backend is ----
every(HEALTH_EVERY, () => true, async () => {
  const res = await call('GET', '/-/ready', { timeout: 4000 });
  const reasons = res.data.reasons || [];
  setState(el('health'), res.ok ? 'good' : 'bad', res.ok ? 'Ready' : res.status === 0 ? 'No answer' : 'Not ready');
  setHidden(el('reasons'), reasons.length === 0);
  setText(el('reasons'), reasons.join('; '));
  const promise = res.data.promise;
  setHidden(el('promise'), me === null || !promise || !promise.weak);
  setText(el('promise'), promise ? 'An accepted order survives ' + promise.survives + '. See System for what to do.' : '');
  if (me === null) return;
  const session = await api('GET', '/session'); // the role may have changed; or another tab logged in
  if (session.ok && me !== null) know(session.data);
  if (live.on) return;
  const queue = await api('GET', '/queue');
  if (queue.ok) deadLetters(queue.data.dead_letters);
});
const before = await api('GET', '/session');
if (before.ok) { know(before.data); listen(); }
route();
