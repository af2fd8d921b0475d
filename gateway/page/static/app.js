// The shopper page. One document serves every path and every language; this script reads the sale from the address.
//
// What it keeps to: time is the server's; orders are sent no faster than the server's limit lets pass, however often the
// button is pressed, in however many tabs; an attempt whose outcome is not known keeps its Idempotency-Key, in all tabs and
// across a reload, so that asking again is the same order; text from the API only ever becomes text.

const SALE_EVERY = 3000;     // ms between two looks at a sale
const WAITING_EVERY = 1000;  // the same, while the shopper waits to press or for an answer
const LINE_EVERY = 4000;     // ms between two looks at the place in the standby line
const CLOCK_EVERY = 60000;   // ms between two looks at the server's clock
const WAIT_MS = 15000;       // how long one question for the verdict may stay open
const WHY_EVERY = 3000;      // ms between two looks at the shopper's timeline, while it is open
const ATTEMPT_LIFE = 600000; // ms after which an attempt without an answer is not taken up again
const ORDER_LIFE = 86400000; // ms for which an order that has not ended is kept for a reload
const MAX_KEPT = 20;         // orders that are kept, of as many sales
const PACE_MS = 300000;      // the pace of a standby line is that of these last ms
const SHOP = document.title;

// ---- signing in ----
const account = { uid: load('uid'), dev: null, changed: () => {} };
function showAccount() {
  setText(el('who'), account.uid || '');
  setText(el('account'), t(account.uid ? 'sign.change' : 'sign.in'));
  setText(el('sign-in-label'), t(account.dev ? 'sign.name' : 'sign.token'));
  setText(el('sign-in-help'), t(account.dev ? 'sign.name.help' : 'sign.token.help'));
}
function signedOut() {
  account.uid = null;
  save('uid', null);
  showAccount();
}
// learnName asks who the cookie is, where this browser has forgotten.
async function learnName() {
  const res = await call('GET', '/v1/session');
  if (res.ok) {
    account.uid = String(res.data.uid);
    save('uid', account.uid);
    showAccount();
  }
  return res;
}
async function signOut() {
  await call('DELETE', '/v1/session');
  signedOut();
  el('sign-in').close();
  announce(t('sign.out.done'));
  account.changed();
}
async function openSignIn() {
  const box = el('sign-in');
  if (box.open) return;
  if (account.dev === null) { // in development a name is enough; an empty request tells whether that exists here
    const probe = await call('POST', '/v1/dev/session', { body: {} });
    if (probe.status !== 0) account.dev = probe.status !== 404 && probe.status !== 405;
  }
  showAccount();
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
  if (!value) { setText(el('sign-in-error'), t('sign.empty')); return; }
  if (account.dev && !/^[A-Za-z0-9._-]{1,64}$/.test(value)) {
    setText(el('sign-in-error'), t('sign.bad.name'));
    return;
  }
  setDisabled(el('sign-in-ok'), true);
  const res = account.dev
    ? await call('POST', '/v1/dev/session', { body: { uid: value } })
    : await call('POST', '/v1/session', { body: { token: value } });
  setDisabled(el('sign-in-ok'), false);
  if (!res.ok) {
    setText(el('sign-in-error'), t(res.code === 'UNAUTHENTICATED' ? 'sign.bad.token' : say(res)));
    return;
  }
  account.uid = String(res.data.uid);
  save('uid', account.uid);
  el('sign-in').close();
  showAccount();
  announce(t('sign.in.as', { who: account.uid }));
  account.changed();
}

// every runs f at once and then about each ms() while the page is looked at, never twice at a time; f may answer with a
// longer pause.
async function every(ms, f) {
  for (;;) {
    const pause = document.visibilityState === 'visible' ? await f() : 0;
    await sleep(jitter(Math.max(ms(), pause || 0)));
  }
}

// ---- the list of sales ----
function listPage() {
  const { root, $ } = view('list-view');
  const cards = new Map(); // sale id -> { $, node, sale }
  let said = '';           // what the list has to say, instead of sales or besides them
  el('main').append(root);
  const draw = () => {
    setText($('list-notice'), said && t(said));
    setHidden($('list-notice'), !said);
    for (const { $, sale } of cards.values()) {
      setText($('title'), sale.title);
      setText($('price'), money(sale.price, sale.currency));
      setText($('state'), phaseWords(phase(sale)));
      setClass($('state'), 'state ' + phase(sale));
      setText($('when'), whenWords(sale));
    }
  };
  every(() => SALE_EVERY, async () => {
    const res = await call('GET', '/v1/sales');
    if (!res.ok) {
      said = say(res);
      draw();
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
    said = sales.length ? '' : 'list.none';
    draw();
    return 0;
  });
  return draw;
}

// ---- one sale ----
// worded is the first of these keys that the table has.
const worded = (...keys) => t(keys.find(has));
const statusWords = (order) => has('status.' + order.status) ? t('status.' + order.status) : order.status;
const rank = (status) => ({ queued: 0, pending_payment: 1 })[status] ?? 2; // a status never goes back
const live = (order) => ['queued', 'pending_payment', 'paid', 'issued'].includes(order.status);

function salePage(id) {
  const { root, $ } = view('sale-view');
  el('main').append(root);
  let sale = null;
  let signedIn = null;        // null: not known yet
  let busy = false;           // an order is on its way
  let following = false;      // another tab sends it
  let before = '';            // the phase that was drawn last
  let message = { key: '' };  // what is told: a string's key, and how it looks
  let asked = false;          // an order of this shopper was refused
  let looks = 0;              // counts who looks at the timeline: only the last one goes on
  let told = null;            // the timeline that is shown
  let line = null;            // the place in the standby line; null: none that is known
  let lineAsked = false;      // the server has said whether there is one
  let lineBusy = false;       // joining or leaving
  let lineLooking = false;    // asking
  let places = [];            // { at, place }: how the line moved, as far as this tab saw it
  let looking = false;        // the shopper asked for their orders
  let lookAgain = 0;          // by performance.now(): from then on they may ask again
  const orders = new Map();   // order id -> { order, card, waiting }

  // An attempt is all tabs' own: one Idempotency-Key until its outcome is known. An order is kept until it has ended.
  const attemptName = 'attempt.' + id;
  const orderName = 'order.' + id;
  const mine = (kept) => kept && account.uid && kept.uid === account.uid ? kept : null;
  const attempt = () => mine(load(attemptName));
  const setAttempt = (a) => save(attemptName, a);
  // one runs f in one tab at a time; how may say what to do where another tab is at it. A tab that is closed gives way.
  const one = (how, f) => navigator.locks ? navigator.locks.request('floodgate.press.' + id, how, f) : f(true);

  function tell(key, kind, values) { message = { key, kind, values }; drawMessage(); }
  function drawMessage() {
    const m = $('message');
    setClass(m, 'notice ' + (message.kind || ''));
    setText(m, message.key && t(message.key, message.values));
    setHidden(m, !message.key);
  }

  // untilPress is how many ms the button still waits, in every tab: as the limit says, or as the server asked.
  function untilPress() {
    const pause = mine(load('pause'));
    const left = pause ? pause.until - Date.now() : 0;
    return left > 0 && left <= pause.ms ? left : 0; // a clock that was set back is no reason to wait longer
  }
  function setPause(ms) {
    if (ms > untilPress()) save('pause', { uid: account.uid, ms, until: Date.now() + ms });
  }

  function held() {
    let n = 0;
    for (const { order } of orders.values()) if (live(order)) n += order.quantity;
    return n;
  }

  function draw() {
    drawMessage();
    drawOrders();
    if (!sale) return;
    const p = phase(sale);
    setText($('title'), sale.title);
    setClass($('title'), sale.title.length > 80 ? 'long' : '');
    setText($('price'), money(sale.price, sale.currency));
    setText($('state'), phaseWords(p));
    setClass($('state'), 'state ' + p);
    drawPicture();
    const next = Date.parse(sale.next_release_at);
    const target = p === 'upcoming' ? Date.parse(sale.starts_at) : p === 'sold_out' && next > now() ? next : 0;
    setHidden($('count'), !target);
    if (target) {
      setText($('count-label'), t(p === 'upcoming' ? 'sale.starts.in' : 'sale.more.in'));
      setText($('count-digits'), span(target - now()));
    }
    setText($('when'), p === 'upcoming' ? t('sale.window', { from: moment(sale.starts_at), to: moment(sale.ends_at) }) : whenWords(sale));
    if (p !== before) turned(p);

    // The button.
    const room = sale.per_user_limit - held();
    const wait = untilPress();
    const coupon = sale.kind === 'coupon';
    setHidden($('buy'), p === 'ended' || room <= 0);
    setHidden($('quantity-row'), coupon || sale.per_user_limit < 2);
    drawQuantity(room);
    const may = p === 'open' && signedIn !== null && !busy && !attempt() && !wait;
    setHidden($('sign-in-row'), signedIn !== false);
    setHidden($('why'), !signedIn || (!$('why').open && (held() > 0 || !(asked || p === 'sold_out' || p === 'ended'))));
    setText($('order'), t(coupon ? 'buy.claim' : 'buy.order'));
    setText($('hint'), hint(p, wait));
    setDisabled($('order'), !may);
    setHidden($('refresh-row'), !signedIn);
    setDisabled($('refresh'), looking || performance.now() < lookAgain);
    drawLine(p, room);
  }
  function hint(p, wait) {
    if (attempt() && !navigator.onLine) return t('hint.offline');
    if (busy) return t('hint.sending');
    if (following) return t('hint.tab');
    if (attempt()) return wait ? t('hint.again.in', { n: seconds(wait) }) : t('hint.again');
    if (!navigator.onLine) return t('offline');
    if (p === 'sold_out') return inLine() ? '' : t('hint.sold_out');
    if (p === 'upcoming' || p === 'paused') return t('hint.' + p);
    return wait ? t('hint.wait', { n: seconds(wait) }) : '';
  }

  // turned tells at once what became of the sale, above all to one who waits to press.
  function turned(p) {
    if (before) announce(p === 'open' ? t('sale.opened') : phaseWords(p));
    const over = { sold_out: 'problem.SOLD_OUT', ended: 'problem.SALE_ENDED' };
    if (before && over[p] && signedIn && held() === 0 && !attempt() && !inLine()) tell(over[p], 'bad');
    else if (p === 'open' && message.key === over.sold_out) tell('');
    before = p;
  }

  // drawPicture shows the sale's picture once it is there; the page needs none.
  function drawPicture() {
    const img = $('picture'), src = sale.picture || '';
    if ((img.getAttribute('src') || '') === src) return;
    setHidden(img, true);
    if (src) img.src = src;
    else img.removeAttribute('src');
  }

  // drawLine shows the standby line: the way in while the sale is sold out, the place, and what became of it.
  function drawLine(p, room) {
    const said = line && has('line.' + line.state);
    const mayJoin = p === 'sold_out' && sale.kind !== 'coupon' && room > 0 && !inLine() && (signedIn === false || lineAsked);
    setHidden($('standby'), !mayJoin && !said);
    setText($('standby-text'), said ? t([`line.${line.state}.${line.reason}`, 'line.' + line.state].find(has), line) : t('line.invite'));
    const left = said && line.state === 'waiting' ? untilTurn() : 0;
    setHidden($('standby-estimate'), !left);
    setText($('standby-estimate'), left ? t('line.estimate', { about: about(left) }) : '');
    setHidden($('standby-join'), !mayJoin);
    setHidden($('standby-leave'), !line || line.state !== 'waiting');
    setDisabled($('standby-join'), lineBusy);
    setDisabled($('standby-leave'), lineBusy);
  }
  const inLine = () => Boolean(line) && (line.state === 'waiting' || line.state === 'offered');

  // untilTurn is in how many ms the head of the line is reached, at the pace that this tab saw in the last minutes; 0: nothing
  // can be said, or it would be after the sale's end.
  function untilTurn() {
    const first = places[0], last = places[places.length - 1];
    if (!first || first.place - last.place < 2) return 0;
    const left = last.place * (performance.now() - first.at) / (first.place - last.place);
    return now() + left < Date.parse(sale.ends_at) ? left : 0;
  }

  // stand takes an answer about the standby line. An offer is an order, and is shown as one.
  async function stand(res) {
    if (res.code === 'NOT_IN_LINE') { line = null; lineAsked = true; }
    if (!res.ok) { draw(); return; }
    const was = line && line.state;
    line = res.data;
    lineAsked = true;
    places = line.state !== 'waiting' ? [] : places.filter((p) => performance.now() - p.at < PACE_MS && p.place >= line.place);
    if (line.state === 'waiting' && places.at(-1)?.place !== line.place) places.push({ at: performance.now(), place: line.place });
    if (line.state === 'offered' && was !== 'offered') {
      const order = await call('GET', '/v1/orders/' + encodeURIComponent(line.offer.order_id));
      if (order.ok) put(order.data);
      else line = was ? { ...line, state: was } : null; // it is asked for again
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
    tell('');
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
      setText(card.$('status'), statusWords(order));
      const amount = sale ? money(order.amount ?? order.quantity * sale.price, sale.currency) : '';
      setText(card.$('amount'), order.quantity > 1 ? t('order.pieces', { n: order.quantity.toLocaleString(locale()), amount }) : amount);
      const due = Date.parse(order.pay_before);
      const payable = order.status === 'pending_payment';
      const late = payable && due <= now();
      const left = order.status === 'queued' && entry.doneAt ? entry.doneAt - now() : 0;
      setText(card.$('explain'), left > 500 ? t('explain.queued.about', { about: about(left) })
        : late ? t('order.late') : worded(`explain.${order.status}.${order.reason}`, 'explain.' + order.status, 'why.other'));
      setHidden(card.$('pay-count'), !payable || !Number.isFinite(due) || late);
      if (payable && !late) setText(card.$('pay-digits'), span(due - now()));
      setHidden(card.$('actions'), !payable);
      setText(card.$('cancel'), t(entry.sure ? 'order.cancel.sure' : 'order.cancel'));
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
      const older = [...list.children].find((node) => node.dataset.id < order.order_id); // ids are time-ordered
      entry.card.node.dataset.id = order.order_id;
      list.insertBefore(entry.card.node, older || null);
    }
    const was = entry.order && entry.order.status;
    if (was && rank(order.status) < rank(was)) return entry; // an answer that was overtaken by a newer one
    entry.order = order;
    if (order.queue_lag_ms) entry.doneAt = Date.parse(order.created_at) + order.queue_lag_ms;
    keep(order);
    if (was !== order.status) announce(t('order.said', { status: statusWords(order) }));
    if (order.status === 'queued' && !entry.waiting) verdict(entry);
    draw();
    return entry;
  }

  // keep writes down an order that has not ended, the newest one, for other tabs and for a reload.
  function keep(order) {
    const kept = load(orderName);
    const newer = mine(kept) && kept.order.order_id > order.order_id;
    if (newer || !account.uid) return;
    if (rank(order.status) < 2) save(orderName, { uid: account.uid, at: Date.now(), order });
    else if (kept && kept.order.order_id === order.order_id) save(orderName, null);
  }

  // verdict waits until an order leaves the line. The first question is short: its answer may say how long others waited.
  async function verdict(entry) {
    entry.waiting = true;
    for (let wait = 2000; current(entry) && entry.order.status === 'queued'; wait = entry.doneAt ? 5000 : WAIT_MS) {
      const began = performance.now();
      const res = await call('GET', orderPath(entry) + '?wait_ms=' + wait, { timeout: wait + 10000 });
      if (!current(entry)) return;
      if (res.ok) {
        put(res.data);
        if (res.data.status === 'queued' && performance.now() - began < 1000) await sleep(jitter(1000));
        continue;
      }
      if (res.code === 'UNAUTHENTICATED') { lostSession(); break; }
      if (res.status >= 400 && res.status < 500 && res.status !== 429) { tell(say(res), 'bad'); save(orderName, null); break; }
      await sleep(jitter(Math.max(res.wait, 2000)));
    }
    entry.waiting = false;
    if (entry.order.status === 'pending_payment') tell('');
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
      draw();
      setTimeout(() => { entry.sure = false; draw(); }, 4000);
      return;
    }
    entry.acting = true;
    draw();
    for (let tries = 0; ; tries++) {
      const res = await call('POST', orderPath(entry) + '/' + what);
      if (res.ok) {
        put(res.data);
        tell(what === 'payment' ? 'order.paid' : 'order.cancelled', 'good');
        break;
      }
      if ((res.status === 0 || res.status === 503 || res.status === 429) && tries < 5) {
        tell(res.code === 'NO_ANSWER' || res.code === 'OUTCOME_UNKNOWN' ? 'order.lost' : 'order.busy', 'warn');
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

  // find asks for the shopper's orders in this sale, and whose they are where that is not known; it returns the answer.
  async function find() {
    const res = await call('GET', '/v1/orders?sale_id=' + id);
    if (res.ok) {
      if (!account.uid) {
        const who = await learnName();
        if (!who.ok) return who;
      }
      signedIn = true;
      for (const order of res.data.orders || []) put(order);
      if (!lineAsked) lookLine();
    } else if (res.code === 'UNAUTHENTICATED') {
      signedIn = false;
      signedOut();
    }
    draw();
    return res;
  }

  // refresh is the button that looks for orders. It pauses until the server's limit has room again for all that it took.
  async function refresh() {
    if (looking || performance.now() < lookAgain) return;
    looking = true;
    draw();
    const res = await find();
    looking = false;
    lookAgain = performance.now() + Math.max(res.wait, SERVER.look_pause_ms);
    if (res.code !== 'UNAUTHENTICATED') tell(res.ok ? 'buy.refreshed' : say(res), res.ok ? '' : 'warn');
    draw();
  }

  function lostSession() {
    signedIn = false;
    signedOut();
    tell('sign.again', 'warn');
    draw();
    openSignIn();
  }

  function randomKey() {
    const b = crypto.getRandomValues(new Uint8Array(16));
    return Array.from(b, (x) => x.toString(16).padStart(2, '0')).join('');
  }

  // press makes an attempt and sends it, where no tab is at one; else it is that tab's.
  async function press() {
    if (signedIn === false && sale && phase(sale) === 'open') { openSignIn(); return; }
    const may = () => !busy && !attempt() && untilPress() === 0 && sale && phase(sale) === 'open';
    if ($('order').disabled || !may()) return;
    const quantity = Number($('quantity').value) || 1;
    const taken = await one({ ifAvailable: true }, async (lock) => {
      if (!lock) return false;
      if (may()) setAttempt({ uid: account.uid, key: randomKey(), quantity, at: Date.now(), lost: false });
      await send();
      return true;
    });
    if (!taken) await follow();
  }

  // follow waits for the tab that sends. What it leaves behind when it is closed is sent from here, with the same key. What it
  // wrote last may reach this tab's storage later than the lock does: the look at the orders comes between.
  async function follow() {
    if (following || busy) return;
    following = true;
    draw();
    await one({}, async () => {
      await find();
      following = false;
      const a = attempt();
      if (!a) return;
      if (Date.now() - a.at > ATTEMPT_LIFE) { setAttempt(null); return; }
      if (!a.lost) setAttempt({ ...a, lost: true });
      await send();
    });
    following = false;
    draw();
  }

  // send sends the present attempt, and goes on with it for as long as its outcome is not known.
  async function send() {
    if (busy) return;
    busy = true;
    tell('');
    draw();
    try {
      for (;;) {
        const a = attempt();
        if (!a) return;
        const offline = a.lost && !navigator.onLine; // the next try is when the browser is online again, or soon
        const wait = Math.max(untilPress(), offline ? 2000 : 0);
        if (wait > 0) {
          busy = false;
          draw();
          await sleep(wait);
          busy = true;
          if (untilPress() > 0) continue;
        }
        setPause(SERVER.order_pause_ms);
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
    if (res.code !== 'SALE_NOT_STARTED') setPause(res.wait); // the start may be moved
    const old = Date.now() - a.at > ATTEMPT_LIFE;
    if (res.status === 202) {
      put({ order_id: res.data.order_id, sale_id: Number(id), quantity: a.quantity, status: res.data.status, pay_before: null, reason: '' });
      tell('order.taken', 'good');
      return true;
    }
    if (res.code === 'NO_ANSWER' || res.code === 'OUTCOME_UNKNOWN' || res.status === 500) {
      setAttempt({ ...a, lost: true });
      if (!navigator.onLine) save('pause', null); // nothing was sent
      else setPause(Math.max(SERVER.order_pause_ms, 1000));
      tell(old ? 'problem.NO_ANSWER' : navigator.onLine ? 'problem.OUTCOME_UNKNOWN' : '', old ? 'bad' : 'warn');
      return old;
    }
    if (a.lost && (res.status === 429 || res.status === 503)) { // this one did nothing; the one before may have
      setPause(1000);
      tell('problem.OUTCOME_UNKNOWN', 'warn');
      return old;
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
    const known = orders.size;
    asked = true;
    if (refused && !(await find()).ok && a.lost && !old) { setPause(1000); return false; }
    if (orders.size > known && res.code !== 'ALREADY_ORDERED') tell('order.found', 'good');
    else tell(say(res), res.code === 'ALREADY_ORDERED' ? 'good' : res.status === 429 || res.status === 503 ? 'warn' : 'bad');
    return true;
  }

  // why tells what became of the shopper's presses, for as long as it is open.
  async function why() {
    const me = ++looks;
    const wanted = () => $('why').open && signedIn && me === looks;
    while (wanted()) {
      const res = await call('GET', '/v1/sales/' + id + '/timeline');
      if (!wanted()) return;
      if (res.code === 'UNAUTHENTICATED') { lostSession(); return; }
      setText($('why-notice'), res.ok ? '' : t(say(res)));
      if (res.ok) { told = res.data; drawWhy(); }
      await sleep(jitter(Math.max(res.wait, WHY_EVERY)));
    }
  }
  function drawWhy() {
    const shown = told ? language + JSON.stringify(told) : '';
    if ($('events').dataset.shown === shown) return;
    $('events').dataset.shown = shown;
    $('events').replaceChildren(...(told && told.events || []).map(eventLine));
    setHidden($('why-note'), !told);
    setHidden($('why-missing'), !told || told.complete);
  }
  function eventLine(e) {
    const { root, $: part } = view('event');
    const at = (text) => new Date(text).toLocaleTimeString(locale());
    const until = e.until === null ? ' –' : at(e.until) === at(e.at) ? '' : ' – ' + at(e.until);
    setText(part('when'), at(e.at) + until);
    part('when').dateTime = e.at;
    const what = worded('why.rule.' + e.rule, `why.${e.what}.${e.rule}`, 'why.' + e.what, 'why.other');
    setText(part('detail'), e.count > 1 ? t('why.times', { n: e.count.toLocaleString(locale()), what }) : what);
    return root;
  }

  async function look() {
    const res = await call('GET', '/v1/sales/' + id);
    if (res.ok) {
      sale = res.data;
      document.title = sale.title + ' · ' + SHOP;
      if (message.look) tell('');
      draw();
      if (!lineAsked) lookLine();
    } else if (!sale || res.status === 404) {
      setText($('title'), t(res.status === 404 ? 'sale.none' : 'sale.wait'));
      tell(say(res), res.status === 404 ? 'bad' : 'warn');
      message.look = true;
      if (res.status === 404) { sale = null; setHidden($('buy'), true); return 15000; }
    }
    return res.wait;
  }

  // clear leaves nothing of one shopper to the next.
  function clear() {
    for (const { card } of orders.values()) card.node.remove();
    orders.clear();
    line = told = null;
    places = [];
    lineAsked = false;
    tell('');
    signedIn = null;
    asked = $('why').open = false;
    drawWhy();
  }

  // recall shows the order that a tab has kept.
  function recall() {
    const kept = mine(load(orderName));
    if (kept && orders.get(kept.order.order_id)?.order.status !== kept.order.status) put(kept.order);
  }

  $('picture').addEventListener('load', () => setHidden($('picture'), false));
  $('picture').addEventListener('error', () => setHidden($('picture'), true));
  $('order').addEventListener('click', press);
  $('refresh').addEventListener('click', refresh);
  $('sign-in-now').addEventListener('click', openSignIn);
  $('why').addEventListener('toggle', () => { if ($('why').open) why(); });
  $('standby-join').addEventListener('click', () => moveLine('POST'));
  $('standby-leave').addEventListener('click', () => moveLine('DELETE'));
  account.changed = () => { clear(); draw(); find(); };
  addEventListener('storage', (event) => { // another tab wrote
    if (event.key === 'floodgate.uid' && load('uid') !== account.uid) {
      account.uid = load('uid');
      showAccount();
      account.changed();
    } else if (event.key === 'floodgate.' + orderName && event.newValue) recall();
    else if (event.key === 'floodgate.' + attemptName && event.newValue && signedIn) follow(); // that tab may be closed
    else if ((event.key === 'floodgate.' + orderName || event.key === 'floodgate.' + attemptName) && !event.newValue && signedIn && !following) find();
    draw();
  });
  sweep();
  recall();
  every(() => signedIn && (attempt() || untilPress() > 0) ? WAITING_EVERY : SALE_EVERY, look);
  every(() => LINE_EVERY, lookLine);
  (async () => { // an order from before a reload; then an attempt that was cut off by it
    for (let tries = 0; tries < 20; tries++) {
      const res = await find();
      if (res.ok || res.code === 'UNAUTHENTICATED') break;
      await sleep(jitter(Math.max(res.wait, 1500)));
    }
    if (attempt() && signedIn) await follow();
    draw();
  })();
  return () => { draw(); drawWhy(); };
}

// sweep forgets attempts and orders that are too old, and all but the newest.
function sweep() {
  const kept = [...stored('attempt.'), ...stored('order.')].map((name) => ({ name, at: Number(load(name)?.at) || 0 })).sort((a, b) => b.at - a.at);
  const life = ({ name }) => name.startsWith('order.') ? ORDER_LIFE : ATTEMPT_LIFE;
  kept.forEach((k, i) => { if (i >= MAX_KEPT || !(Date.now() - k.at < life(k))) save(k.name, null); });
}

// ---- start ----
el('account').addEventListener('click', openSignIn);
el('sign-in-form').addEventListener('submit', signIn);
el('sign-out').addEventListener('click', signOut);
el('sign-in-cancel').addEventListener('click', () => el('sign-in').close());
const path = /^\/sales\/([1-9][0-9]{0,18})$/.exec(location.pathname);
let draw = () => {};
function speak() { // in the chosen language
  document.documentElement.lang = LANGUAGES[language];
  el('lang').lang = LANGUAGES[1 - language];
  translate(document);
  showAccount();
  draw();
}
el('lang').addEventListener('click', () => {
  language = 1 - language;
  save('lang', LANGUAGES[language]);
  speak();
});
speak();
draw = path ? salePage(path[1]) : listPage();
draw();
every(() => CLOCK_EVERY, setClock);
document.addEventListener('visibilitychange', () => { if (document.visibilityState === 'visible') setClock(); });
setInterval(() => { // the tick: a quarter of a second is as late as the button may wake
  setText(el('clock'), clock.known ? new Date(now()).toLocaleTimeString(locale(), { timeZone: 'UTC', hour12: false }) + ' UTC' : '…');
  draw();
}, 250);
