// The operator's console. It uses the admin API like any client, in the session of a cookie; what it shows is what that said last.
// This file decides what is shown; each view has its own. What a role may not do is hidden; the API refuses it in any case.

import { api, call, know, me, say } from './api.js';
import { events } from './events.js';
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
const views = { sales, skus, orders, payments, shoppers, queue, letters, events, log };
const details = { sales: sale, skus: sku };

let shown = 0; // counts views: an older one is not alive
function route() {
  const mine = ++shown;
  const alive = () => mine === shown;
  setHidden(el('lost'), true);
  document.title = 'Floodgate console';
  if (el('ask').open) el('ask').close();
  setHidden(el('nav'), me === null);
  setHidden(el('leave'), me === null);
  if (me === null) { enter(); return; }
  const [path, query = ''] = location.hash.slice(1).split('?');
  const [, name = '', id = ''] = path.split('/');
  for (const link of el('nav').children) {
    if (link.getAttribute('href') === '#/' + (name || 'sales')) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  const detail = /^[1-9]\d{0,15}$/.test(id) && Object.hasOwn(details, name);
  const view = Object.hasOwn(views, name) ? views[name] : sales;
  const look = detail ? details[name](alive, Number(id)) : view(alive, new URLSearchParams(query));
  if (look) every(LOOK_EVERY, alive, look);
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
  setText(el('promise'), promise ? 'An accepted order survives ' + promise.survives + '. See Queue for what to do.' : '');
  if (me === null) return;
  const session = await api('GET', '/session'); // the role may have changed; or another tab logged in
  if (session.ok && me !== null) know(session.data);
  const queue = await api('GET', '/queue');
  if (!queue.ok) return;
  setHidden(el('letters-count'), queue.data.dead_letters === 0);
  setText(el('letters-count'), count(queue.data.dead_letters));
});
const before = await api('GET', '/session');
if (before.ok) know(before.data);
route();
