// The shopper page. One document serves every path; this script reads the sale from the address.
//
// What it keeps to: time is the server's; at most one order is sent in PRESS_EVERY ms, however often the button is
// pressed, in however many tabs; an attempt whose outcome is not known keeps its Idempotency-Key, also across a reload,
// so that asking again is the same order; text from the API only ever becomes text.
import {
  announce, call, clock, el, jitter, load, moment, money, now, phase, phaseWords, save, say, setClass, setClock, setDisabled,
  setHidden, setText, sleep, span, view, whenWords, words,
} from '/assets/core.js';

const PRESS_EVERY = 5000;    // ms between two orders that are sent
const SALE_EVERY = 3000;     // ms between two looks at a sale
const LINE_EVERY = 4000;     // ms between two looks at the place in the standby line
const CLOCK_EVERY = 60000;   // ms between two looks at the server's clock
const WAIT_MS = 15000;       // how long one question for the verdict may stay open
const WHY_EVERY = 3000;      // ms between two looks at the shopper's timeline, while it is open
const ATTEMPT_LIFE = 600000; // ms after which an attempt without an answer is not taken up again

// ---- signing in ----
const account = { uid: load('localStorage', 'uid'), dev: null, changed: () => {} };
function showAccount() {
  setText(el('who'), account.uid || '');
  setText(el('account'), account.uid ? 'Change' : 'Sign in');
}
function signedOut() {
  account.uid = null;
  save('localStorage', 'uid', null);
  showAccount();
}
// learnName asks who the cookie is, where this browser has forgotten.
async function learnName() {
  const res = await call('GET', '/v1/session');
  if (!res.ok) return;
  account.uid = String(res.data.uid);
  save('localStorage', 'uid', account.uid);
  showAccount();
}
async function signOut() {
  await call('DELETE', '/v1/session');
  signedOut();
  el('sign-in').close();
  announce('Signed out');
  account.changed();
}
async function openSignIn() {
  const box = el('sign-in');
  if (box.open) return;
  if (account.dev === null) { // in development a name is enough; an empty request tells whether that exists here
    const probe = await call('POST', '/v1/dev/session', { body: {} });
    if (probe.status !== 0) account.dev = probe.status !== 404 && probe.status !== 405;
  }
  setText(el('sign-in-label'), account.dev ? 'Shopper name' : 'Token');
  setText(el('sign-in-help'), account.dev
    ? 'This is a development system: any name of letters, digits, dot, dash and underscore will do.'
    : 'Paste the token that your shop account gave you. It is sent once and kept by your browser as a cookie that no script can read.');
  el('sign-in-value').type = account.dev ? 'text' : 'password';
  el('sign-in-value').value = '';
  setHidden(el('sign-out'), !account.uid);
  setText(el('sign-in-error'), '');
  box.showModal();
  el('sign-in-value').focus();
}
async function signIn(event) {
  event.preventDefault();
  const value = el('sign-in-value').value.trim();
  if (!value) { setText(el('sign-in-error'), 'Please fill this in.'); return; }
  if (account.dev && !/^[A-Za-z0-9._-]{1,64}$/.test(value)) {
    setText(el('sign-in-error'), 'Up to 64 letters, digits, dots, dashes and underscores, please.');
    return;
  }
  setDisabled(el('sign-in-ok'), true);
  const res = account.dev
    ? await call('POST', '/v1/dev/session', { body: { uid: value } })
    : await call('POST', '/v1/session', { body: { token: value } });
  setDisabled(el('sign-in-ok'), false);
  if (!res.ok) {
    setText(el('sign-in-error'), res.code === 'UNAUTHENTICATED' ? 'This token is not accepted: it is wrong or has expired.' : say(res));
    return;
  }
  account.uid = typeof res.data.uid === 'string' ? res.data.uid : account.dev ? value : 'Signed in';
  save('localStorage', 'uid', account.uid);
  el('sign-in').close();
  showAccount();
  announce('Signed in as ' + account.uid);
  account.changed();
}

// every runs f at once and then about each ms while the page is looked at, never twice at a time; f may answer with a
// longer pause.
async function every(ms, f) {
  for (;;) {
    const pause = document.visibilityState === 'visible' ? await f() : 0;
    await sleep(jitter(Math.max(ms, pause || 0)));
  }
}

// ---- the list of sales ----
function listPage() {
  const { root, $ } = view('list-view');
  const cards = new Map(); // sale id -> { $, node, sale }
  el('main').append(root);
  const draw = () => {
    for (const { $, sale } of cards.values()) {
      setText($('title'), sale.title);
      setText($('price'), money(sale.price, sale.currency));
      setText($('state'), phaseWords[phase(sale)] || sale.state);
      setClass($('state'), 'state ' + phase(sale));
      setText($('when'), whenWords(sale));
    }
  };
  every(SALE_EVERY, async () => {
    const res = await call('GET', '/v1/sales');
    const notice = $('list-notice');
    if (!res.ok) {
      setText(notice, say(res));
      setHidden(notice, false);
      return res.wait;
    }
    const sales = res.data.sales || [];
    const seen = new Set(sales.map((s) => s.id));
    for (const [id, card] of cards) if (!seen.has(id)) { card.node.remove(); cards.delete(id); }
    for (const sale of sales) {
      let card = cards.get(sale.id);
      if (!card) {
        const v = view('card');
        card = { $: v.$, node: v.root.firstElementChild };
        card.$('link').href = '/sales/' + encodeURIComponent(sale.id);
        cards.set(sale.id, card);
        $('list').append(card.node);
      }
      card.sale = sale;
    }
    setText(notice, 'There is no sale at the moment.');
    setHidden(notice, sales.length > 0);
    draw();
    return 0;
  });
  return draw;
}

// ---- one sale ----
const statusWords = {
  queued: 'In line', pending_payment: 'Reserved for you', paid: 'Paid', issued: 'Yours',
  cancelled: 'Cancelled', expired: 'Expired', rejected: 'Not accepted',
};
const explainWords = {
  queued: 'Your order is accepted and is being made. This page will tell you.',
  pending_payment: 'Pay in time and it is yours.',
  paid: 'Thank you. It is yours.',
  issued: 'The coupon is yours.',
  cancelled: 'You gave it back.',
  expired: 'It was not paid in time and went back into the sale.',
  rejected: 'The order could not be made.',
};
const reasonWords = { out_of_stock: 'Nothing was left for it.', limit: 'You already had as many as one person may have.' };
const passedWords = { limit: ', for you have as many as one person may have', too_many_orders: ', for too many of your orders were cancelled or not paid' };
const lineWords = {
  waiting: (line) => 'You are number ' + line.place + ' in the standby line. What comes back is offered to you here, for a short time.',
  offered: () => 'Something came back, and it is offered to you. Pay in time and it is yours.',
  lapsed: () => 'Your offer was not paid in time and went to the next in line.',
  passed: (line) => 'You were passed over' + (passedWords[line.reason] || '') + '.',
  ended: () => 'The sale has ended. Nothing came back for you.',
};
const rank = (status) => ({ queued: 0, pending_payment: 1 })[status] ?? 2; // a status never goes back
const live = (order) => ['queued', 'pending_payment', 'paid', 'issued'].includes(order.status);

function salePage(id) {
  const { root, $ } = view('sale-view');
  el('main').append(root);
  let sale = null;
  let signedIn = null;        // null: not known yet
  let busy = false;           // an order is on its way
  let blockedUntil = 0;       // by performance.now(): Retry-After
  let startSaid = false;
  let asked = false;          // an order of this shopper was refused
  let looks = 0;              // counts who looks at the timeline: only the last one goes on
  let line = null;            // the place in the standby line; null: none that is known
  let lineAsked = false;      // the server has said whether there is one
  let lineBusy = false;       // joining or leaving
  let lineLooking = false;    // asking
  const orders = new Map();   // order id -> { order, card, waiting }

  const attemptName = 'attempt.' + id;
  const attempt = () => load('sessionStorage', attemptName);
  const setAttempt = (a) => save('sessionStorage', attemptName, a);

  function tell(text, kind) {
    const m = $('message');
    setClass(m, 'notice ' + (kind || ''));
    setText(m, text);
    setHidden(m, !text);
  }

  // untilPress is how many ms the button still waits: between presses (all tabs), or as the server asked.
  function untilPress() {
    const last = Number(load('localStorage', 'pressed')) || 0;
    const since = Date.now() - last;
    const spacing = since >= 0 && since < PRESS_EVERY ? PRESS_EVERY - since : 0;
    return Math.max(spacing, blockedUntil - performance.now(), 0);
  }

  function held() {
    let n = 0;
    for (const { order } of orders.values()) if (live(order)) n += order.quantity;
    return n;
  }

  function draw() {
    if (!sale) return;
    const p = phase(sale);
    setText($('title'), sale.title);
    setText($('price'), money(sale.price, sale.currency));
    setText($('state'), phaseWords[p] || p);
    setClass($('state'), 'state ' + p);
    const next = Date.parse(sale.next_release_at);
    const target = p === 'upcoming' ? Date.parse(sale.starts_at) : p === 'sold_out' && next > now() ? next : 0;
    setHidden($('count'), !target);
    if (target) {
      setText($('count-label'), p === 'upcoming' ? 'Starts in' : 'More units in');
      setText($('count-digits'), span(target - now()));
    }
    setText($('when'), p === 'upcoming' ? 'Starts ' + moment(sale.starts_at) + ', ends ' + moment(sale.ends_at) : whenWords(sale));
    if (p === 'open' && !startSaid) announce('The sale is open.');
    startSaid = p === 'open';

    // The button.
    const room = sale.per_user_limit - held();
    const wait = untilPress();
    const coupon = sale.kind === 'coupon';
    setHidden($('buy'), p === 'ended' || room <= 0);
    setHidden($('quantity-row'), coupon || sale.per_user_limit < 2);
    drawQuantity(room);
    const label = coupon ? 'Claim' : 'Order';
    let hint = '';
    if (busy) hint = 'Sending…';
    else if (attempt()) hint = 'Asking again for your order' + (wait ? ' in ' + Math.ceil(wait / 1000) + ' s' : '') + '…';
    else if (p === 'upcoming') hint = 'The button wakes at the start.';
    else if (p === 'sold_out') hint = inLine() ? '' : 'The button wakes if units come back.';
    else if (p === 'paused') hint = 'The sale is paused. It will go on.';
    else if (wait) hint = 'You can press again in ' + Math.ceil(wait / 1000) + ' s.';
    const may = p === 'open' && signedIn !== null && !busy && !attempt() && !wait;
    setHidden($('sign-in-row'), signedIn !== false);
    setHidden($('why'), !signedIn || (!$('why').open && (held() > 0 || !(asked || p === 'sold_out' || p === 'ended'))));
    setText($('order'), label);
    setText($('hint'), hint);
    setDisabled($('order'), !may);
    drawLine(p, room);
    drawOrders();
  }

  // drawLine shows the standby line: the way in while the sale is sold out, the place, and what became of it.
  function drawLine(p, room) {
    const said = line && lineWords[line.state];
    const mayJoin = p === 'sold_out' && sale.kind !== 'coupon' && room > 0 && !inLine() && (signedIn === false || lineAsked);
    setHidden($('standby'), !mayJoin && !said);
    setText($('standby-text'), said ? said(line) : 'Wait in line for what comes back, when somebody cancels or does not pay.');
    setHidden($('standby-join'), !mayJoin);
    setHidden($('standby-leave'), !line || line.state !== 'waiting');
    setDisabled($('standby-join'), lineBusy);
    setDisabled($('standby-leave'), lineBusy);
  }
  const inLine = () => Boolean(line) && (line.state === 'waiting' || line.state === 'offered');

  // stand takes an answer about the standby line. An offer is an order, and is shown as one.
  async function stand(res) {
    if (res.code === 'NOT_IN_LINE') { line = null; lineAsked = true; }
    if (!res.ok) { draw(); return; }
    const before = line && line.state;
    line = res.data;
    lineAsked = true;
    if (line.state === 'offered' && before !== 'offered') {
      const order = await call('GET', '/v1/orders/' + encodeURIComponent(line.offer.order_id));
      if (order.ok) put(order.data);
      else line = before ? { ...line, state: before } : null; // it is asked for again
    }
    draw();
  }

  // lookLine asks for the place while there is one, and once whether there is.
  async function lookLine() {
    if (!signedIn || lineBusy || lineLooking || !sale || !(inLine() || (!lineAsked && phase(sale) === 'sold_out'))) return 0;
    const who = account.uid;
    lineLooking = true;
    const res = await call('GET', '/v1/sales/' + id + '/standby');
    lineLooking = false;
    if (who !== account.uid) return 0; // another shopper's by now
    if (res.code === 'UNAUTHENTICATED') lostSession();
    await stand(res);
    return res.wait;
  }

  async function moveLine(method) {
    if (signedIn === false) { openSignIn(); return; }
    if (lineBusy) return;
    lineBusy = true;
    tell('', '');
    draw();
    for (let tries = 0; ; tries++) { // both ways are idempotent
      const res = await call(method, '/v1/sales/' + id + '/standby');
      if ((res.status === 0 || res.status === 503 || res.status === 429) && tries < 5) {
        await sleep(jitter(Math.max(res.wait, 1000)));
        continue;
      }
      if (res.code === 'UNAUTHENTICATED') lostSession();
      else if (!res.ok) tell(say(res), 'warn');
      await stand(res);
      break;
    }
    lineBusy = false;
    draw();
  }

  function drawQuantity(room) {
    const select = $('quantity');
    if (select.options.length === Math.max(room, 1)) return;
    const kept = Math.min(Number(select.value) || 1, Math.max(room, 1));
    select.replaceChildren();
    for (let n = 1; n <= Math.max(room, 1) && n <= 100; n++) select.append(new Option(String(n), String(n), false, n === kept));
  }

  function drawOrders() {
    setHidden($('mine'), orders.size === 0);
    for (const entry of orders.values()) {
      const { order, card } = entry;
      setClass(card.node, 'order' + (live(order) ? ' live' : ''));
      setText(card.$('status'), statusWords[order.status] || order.status);
      setText(card.$('amount'), (order.quantity > 1 ? order.quantity + ' pieces, ' : '') + money(order.amount ?? order.quantity * sale.price, sale.currency));
      let explain = explainWords[order.status] || '';
      if (order.status === 'rejected' && order.reason) explain += ' ' + (reasonWords[order.reason] || '(' + order.reason + ')');
      const due = Date.parse(order.pay_before);
      const payable = order.status === 'pending_payment';
      const late = payable && due <= now();
      if (late) explain = 'The time to pay is over. The order goes back into the sale.';
      setText(card.$('explain'), explain);
      setHidden(card.$('pay-count'), !payable || !Number.isFinite(due) || late);
      if (payable && !late) setText(card.$('pay-digits'), span(due - now()));
      setHidden(card.$('actions'), !payable);
      setDisabled(card.$('pay'), Boolean(entry.acting) || late);
      setDisabled(card.$('cancel'), Boolean(entry.acting));
      if (late && !entry.lateAsked) { entry.lateAsked = true; watchEnd(entry); }
    }
  }

  // put keeps an order and shows it, newest first.
  function put(order) {
    let entry = orders.get(order.order_id);
    if (!entry) {
      const v = view('order-card');
      entry = { card: { $: v.$, node: v.root.firstElementChild }, waiting: false };
      setText(v.$('id'), order.order_id);
      v.$('pay').addEventListener('click', () => act(entry, 'payment'));
      v.$('cancel').addEventListener('click', () => act(entry, 'cancellation'));
      orders.set(order.order_id, entry);
      const list = $('orders');
      const before = [...list.children].find((node) => node.dataset.id < order.order_id); // ids are time-ordered
      entry.card.node.dataset.id = order.order_id;
      list.insertBefore(entry.card.node, before || null);
    }
    const was = entry.order && entry.order.status;
    if (was && rank(order.status) < rank(was)) return entry; // an answer that was overtaken by a newer one
    entry.order = order;
    if (was !== order.status) announce('Order: ' + (statusWords[order.status] || order.status));
    if (order.status === 'queued' && !entry.waiting) verdict(entry);
    draw();
    return entry;
  }

  // verdict waits until an order leaves the line.
  async function verdict(entry) {
    entry.waiting = true;
    while (current(entry) && entry.order.status === 'queued') {
      const began = performance.now();
      const res = await call('GET', orderPath(entry) + '?wait_ms=' + WAIT_MS, { timeout: WAIT_MS + 10000 });
      if (!current(entry)) return;
      if (res.ok) {
        put(res.data);
        if (res.data.status === 'queued' && performance.now() - began < 1000) await sleep(jitter(1000));
        continue;
      }
      if (res.code === 'UNAUTHENTICATED') { lostSession(); break; }
      if (res.status >= 400 && res.status < 500 && res.status !== 429) { tell(say(res), 'bad'); break; }
      await sleep(jitter(Math.max(res.wait, 2000)));
    }
    entry.waiting = false;
    if (entry.order.status === 'pending_payment') tell('', '');
  }
  const current = (entry) => orders.get(entry.order.order_id) === entry; // not another shopper's by now
  const orderPath = (entry) => '/v1/orders/' + encodeURIComponent(entry.order.order_id);

  // watchEnd follows an order whose time to pay is over until the server has ended it.
  async function watchEnd(entry) {
    while (current(entry) && entry.order.status === 'pending_payment') {
      const res = await call('GET', orderPath(entry));
      if (res.ok) put(res.data);
      else if (res.code === 'UNAUTHENTICATED') { lostSession(); return; }
      await sleep(jitter(Math.max(res.wait, 2000)));
    }
  }

  // act pays or cancels. Both are idempotent, so a lost answer is simply asked for again.
  async function act(entry, what) {
    if (entry.acting) return;
    if (what === 'cancellation' && !entry.sure) { // a second press makes it so
      entry.sure = true;
      setText(entry.card.$('cancel'), 'Press again to cancel');
      setTimeout(() => { entry.sure = false; setText(entry.card.$('cancel'), 'Cancel order'); }, 4000);
      return;
    }
    entry.acting = true;
    draw();
    for (let tries = 0; ; tries++) {
      const res = await call('POST', orderPath(entry) + '/' + what);
      if (res.ok) {
        put(res.data);
        tell(what === 'payment' ? 'Paid. It is yours.' : 'Cancelled. It is back in the sale.', 'good');
        break;
      }
      if ((res.status === 0 || res.status === 503 || res.status === 429) && tries < 5) {
        tell(res.code === 'NO_ANSWER' || res.code === 'OUTCOME_UNKNOWN' ? 'The answer got lost on the way. Asking again…' : 'Very busy at the moment. Trying again…', 'warn');
        await sleep(jitter(Math.max(res.wait, 1000)));
        continue;
      }
      if (res.code === 'UNAUTHENTICATED') lostSession();
      else tell(say(res), 'bad');
      const fresh = await call('GET', orderPath(entry));
      if (fresh.ok) put(fresh.data);
      break;
    }
    entry.acting = false;
    draw();
  }

  // find asks for the shopper's orders in this sale; it says whether an answer came.
  async function find() {
    const res = await call('GET', '/v1/orders?sale_id=' + id);
    if (res.ok) {
      signedIn = true;
      if (!account.uid) learnName();
      for (const order of res.data.orders || []) put(order);
      if (!lineAsked) lookLine();
    } else if (res.code === 'UNAUTHENTICATED') {
      signedIn = false;
      signedOut();
    }
    draw();
    return res;
  }

  function lostSession() {
    signedIn = false;
    signedOut();
    tell('Please sign in again; your orders are kept.', 'warn');
    draw();
    openSignIn();
  }

  function randomKey() {
    const b = crypto.getRandomValues(new Uint8Array(16));
    return Array.from(b, (x) => x.toString(16).padStart(2, '0')).join('');
  }

  async function press() {
    if (signedIn === false && sale && phase(sale) === 'open') { openSignIn(); return; }
    if ($('order').disabled || busy || attempt() || untilPress() > 0 || !sale || phase(sale) !== 'open') return;
    setAttempt({ key: randomKey(), quantity: Number($('quantity').value) || 1, at: Date.now(), lost: false });
    await send();
  }

  // send sends the present attempt, and goes on with it for as long as its outcome is not known.
  async function send() {
    if (busy) return;
    busy = true;
    tell('', '');
    draw();
    try {
      for (;;) {
        const a = attempt();
        if (!a) return;
        const wait = untilPress();
        if (wait > 0) { busy = false; draw(); await sleep(wait); if (busy) return; busy = true; continue; }
        save('localStorage', 'pressed', Date.now());
        draw();
        const res = await call('POST', '/v1/sales/' + id + '/orders', { body: { quantity: a.quantity }, key: a.key });
        if (await settle(a, res)) { setAttempt(null); return; }
      }
    } finally {
      busy = false;
      draw();
    }
  }

  // settle takes the answer to an attempt; true: the attempt is over.
  async function settle(a, res) {
    if (res.wait) blockedUntil = performance.now() + res.wait;
    if (res.status === 202) {
      put({ order_id: res.data.order_id, sale_id: Number(id), quantity: a.quantity, status: res.data.status, pay_before: null, reason: '' });
      tell('Your order is in line. Please stay on this page.', 'good');
      return true;
    }
    if (res.code === 'NO_ANSWER' || res.code === 'OUTCOME_UNKNOWN' || res.status === 500) {
      tell(words.OUTCOME_UNKNOWN, 'warn');
      setAttempt({ ...a, lost: true });
      blockedUntil = Math.max(blockedUntil, performance.now() + PRESS_EVERY);
      if (a.lost && Date.now() - a.at > ATTEMPT_LIFE) { tell(words.NO_ANSWER, 'bad'); return true; }
      return false;
    }
    if (a.lost && (res.status === 429 || res.status === 503)) { // this one did nothing; the one before may have
      tell(words.OUTCOME_UNKNOWN, 'warn');
      return Date.now() - a.at > ATTEMPT_LIFE;
    }
    switch (res.code) {
      case 'UNAUTHENTICATED':
        lostSession();
        return true;
      case 'SALE_NOT_STARTED':
        if (res.data.starts_at && sale) sale.starts_at = res.data.starts_at;
        setClock();
        break;
      case 'SOLD_OUT':
        if (sale) sale.state = 'sold_out';
        break;
      case 'SALE_ENDED':
        if (sale) sale.state = 'ended';
        break;
    }
    // A refusal says nothing about an order that is there already: look.
    const refused = res.status === 409 || res.status === 403 || res.status === 422;
    const before = orders.size;
    asked = true;
    if (refused) await find();
    if (orders.size > before && res.code !== 'ALREADY_ORDERED') tell('You have an order in this sale. Here it is.', 'good');
    else tell(say(res), res.code === 'ALREADY_ORDERED' ? 'good' : res.status === 429 || res.status === 503 ? 'warn' : 'bad');
    return true;
  }

  // why tells what became of the shopper's presses, for as long as it is open.
  async function why() {
    const mine = ++looks;
    const wanted = () => $('why').open && signedIn && mine === looks;
    while (wanted()) {
      const res = await call('GET', '/v1/sales/' + id + '/timeline');
      if (!wanted()) return;
      if (res.code === 'UNAUTHENTICATED') { lostSession(); return; }
      setText($('why-notice'), res.ok ? '' : say(res));
      if (res.ok) {
        const text = JSON.stringify(res.data);
        if ($('events').dataset.shown !== text) {
          $('events').dataset.shown = text;
          $('events').replaceChildren(...(res.data.events || []).map(eventLine));
          setText($('why-note'), res.data.note || '');
          setText($('why-missing'), 'This is not all: ' + (res.data.missing || []).join('; ') + '.');
        }
        setHidden($('why-note'), !res.data.note);
        setHidden($('why-missing'), Boolean(res.data.complete));
      }
      await sleep(jitter(Math.max(res.wait, WHY_EVERY)));
    }
  }
  function eventLine(e) {
    const { root, $: part } = view('event');
    const at = (text) => new Date(text).toLocaleTimeString();
    const until = e.until === null ? ' –' : at(e.until) === at(e.at) ? '' : ' – ' + at(e.until);
    setText(part('when'), at(e.at) + until);
    part('when').dateTime = e.at;
    setText(part('detail'), (e.count > 1 ? e.count + ' times: ' : '') + e.detail);
    return root;
  }

  async function look() {
    const res = await call('GET', '/v1/sales/' + id);
    if (res.ok) {
      if (res.data.state !== (sale && sale.state) && sale) setTimeout(draw);
      sale = res.data;
      document.title = sale.title + ' · Floodgate';
      if ($('message').dataset.look) { $('message').dataset.look = ''; tell('', ''); }
      draw();
      if (!lineAsked) lookLine();
    } else if (!sale || res.status === 404) {
      setText($('title'), res.status === 404 ? 'No such sale' : 'One moment…');
      tell(say(res), res.status === 404 ? 'bad' : 'warn');
      $('message').dataset.look = '1';
      if (res.status === 404) { sale = null; setHidden($('buy'), true); return 15000; }
    }
    return res.wait;
  }

  $('order').addEventListener('click', press);
  $('sign-in-now').addEventListener('click', openSignIn);
  $('why').addEventListener('toggle', () => { if ($('why').open) why(); });
  $('standby-join').addEventListener('click', () => moveLine('POST'));
  $('standby-leave').addEventListener('click', () => moveLine('DELETE'));
  account.changed = () => { // another shopper: nothing of the one before stays
    for (const { card } of orders.values()) card.node.remove();
    orders.clear();
    line = null;
    lineAsked = false;
    setAttempt(null);
    tell('', '');
    signedIn = null;
    asked = $('why').open = false;
    $('events').replaceChildren();
    $('events').dataset.shown = '';
    draw();
    find();
  };
  every(SALE_EVERY, look);
  every(LINE_EVERY, lookLine);
  (async () => { // an order from before a reload; then an attempt that was cut off by it
    for (let tries = 0; tries < 20; tries++) {
      const res = await find();
      if (res.ok || res.code === 'UNAUTHENTICATED') break;
      await sleep(jitter(Math.max(res.wait, 1500)));
    }
    const a = attempt();
    if (!a) return;
    if (!signedIn || Date.now() - a.at > ATTEMPT_LIFE) setAttempt(null);
    else { setAttempt({ ...a, lost: true }); send(); }
    draw();
  })();
  return draw;
}

// ---- start ----
el('account').addEventListener('click', openSignIn);
el('sign-in-form').addEventListener('submit', signIn);
el('sign-out').addEventListener('click', signOut);
el('sign-in-cancel').addEventListener('click', () => el('sign-in').close());
showAccount();
const path = /^\/sales\/([1-9][0-9]{0,18})$/.exec(location.pathname);
const draw = path ? salePage(path[1]) : listPage();
every(CLOCK_EVERY, setClock);
document.addEventListener('visibilitychange', () => { if (document.visibilityState === 'visible') setClock(); });
setInterval(() => { // the tick: a quarter of a second is as late as the button may wake
  setText(el('clock'), clock.known ? new Date(now()).toISOString().slice(11, 19) + ' UTC' : '…');
  draw();
}, 250);
