// The operator's console. It holds the admin token of this tab and uses the admin API like any client; what it shows is what
// that said last. Each change has one Idempotency-Key, which a second try after a lost answer keeps; text from the API only
// ever becomes text.

const LOOK_EVERY = 2000;   // ms between two looks at what a view shows
const QUEUE_EVERY = 4000;  // ms between two looks at the queue
const HEALTH_EVERY = 5000; // ms between two looks at readiness and dead letters
const POINTS = 300;        // of a chart

// ---- the document ----
const el = (id) => document.getElementById(id);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
// set* touch the document only on a change, so that screen readers hear changes only.
function setText(node, text) { text = String(text); if (node.textContent !== text) node.textContent = text; }
function setHidden(node, hidden) { if (node.hidden !== hidden) node.hidden = hidden; }
function setState(node, name, text) { setText(node, text); if (node.className !== 'state ' + name) node.className = 'state ' + name; }
function announce(text) { setText(el('announce'), text); }
function make(tag, text, name) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (name) node.className = name;
  return node;
}
function copy(id) { // a template's copy, and its named elements
  const root = el(id).content.cloneNode(true);
  const named = {};
  for (const node of root.querySelectorAll('[data-el]')) named[node.dataset.el] = node;
  return { root, $: (name) => named[name] };
}
// rows makes a table's body show items: those whose key was there keep their row; where items never change, as it is.
function rows(body, items, key, fill, fixed = false) {
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
const count = (n) => Number(n).toLocaleString();
const moment = (text) => (text ? new Date(text).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' }) : '');
const brief = (text) => new Date(text).toLocaleString(undefined, { month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit' });
const age = (ms) => (ms < 1000 ? ms + ' ms' : ms < 120000 ? (ms / 1000).toFixed(1) + ' s' : Math.round(ms / 60000) + ' min');
function digits(currency) {
  try { return new Intl.NumberFormat(undefined, { style: 'currency', currency }).resolvedOptions().maximumFractionDigits; } catch { return 0; }
}
function money(amount, currency) {
  try { return new Intl.NumberFormat(undefined, { style: 'currency', currency }).format(amount / 10 ** digits(currency)); } catch { return amount + ' ' + currency; }
}
const stateWords = { upcoming: 'Upcoming', open: 'Open', sold_out: 'Sold out', paused: 'Paused', ended: 'Ended', closed: 'Closed', archived: 'Archived' };
const stateOf = (sale) => (sale.archived_at ? 'archived' : sale.closed_at ? 'closed' : sale.state);

// newKey is an Idempotency-Key; crypto.randomUUID is not there where the console is not on localhost or behind TLS.
const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, '0')).join('');

// ---- the API ----
let token = null;
try { token = sessionStorage.getItem('floodgate.admin'); } catch { /* this tab's memory has to do */ }
function keep(value) {
  token = value;
  try { value === null ? sessionStorage.removeItem('floodgate.admin') : sessionStorage.setItem('floodgate.admin', value); } catch { /* as above */ }
}

// call never throws; status 0: no answer came.
async function call(method, path, { body, key, version, as = 'json', timeout = 35000 } = {}) {
  const gone = new AbortController();
  const timer = setTimeout(() => gone.abort(), timeout);
  const headers = {};
  if (token) headers.Authorization = 'Bearer ' + token;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (key) headers['Idempotency-Key'] = key;
  if (version) headers['If-Match'] = '"' + version + '"';
  try {
    const res = await fetch(path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: 'no-store', redirect: 'error', signal: gone.signal,
    });
    let data = {};
    try { data = res.ok && as === 'blob' ? await res.blob() : await res.json(); } catch (e) { if (res.ok) throw e; }
    if (res.status === 401 && token !== null) leave('The token is not accepted any more.');
    return { status: res.status, ok: res.ok, data };
  } catch {
    return { status: 0, ok: false, data: {} };
  } finally {
    clearTimeout(timer);
  }
}
const api = (method, path, options) => call(method, '/admin/v1' + path, options);
const say = (res) => (res.status === 0 ? 'No answer from the backend.' : (res.data.field ? res.data.field + ': ' : '') + (res.data.detail || res.data.title || 'It answered ' + res.status + '.'));
const lost = (res) => res.status === 0 || res.data.code === 'OUTCOME_UNKNOWN';

// told shows, or takes back, that the view cannot be kept up to date.
function told(res) {
  setHidden(el('lost'), res.ok);
  if (!res.ok) setText(el('lost'), 'What you see is not up to date: ' + say(res));
  return res.ok;
}

// ---- asking before a change ----
// ask opens a dialog, and sends what its form says until it is done or given up: { title, words, ok, danger, fields: [{ name,
// label, type, value, hint }], send: (values, key) => answer, done: (data) => {} }. A field's check may throw words.
function ask({ title, words = '', ok, danger = false, fields = [], send, done = () => {} }) {
  setText(el('ask-title'), title);
  setText(el('ask-words'), words);
  setText(el('ask-ok'), ok);
  setText(el('ask-error'), '');
  el('ask-ok').disabled = false;
  el('ask-ok').className = danger ? 'quiet danger' : 'primary';
  const inputs = new Map();
  el('ask-fields').replaceChildren(...fields.map((f) => {
    const label = make('label', f.label);
    const input = make(f.options ? 'select' : 'input');
    for (const o of f.options || []) input.append(make('option', o));
    if (!f.options) input.type = f.type || 'text';
    if (f.type === 'number') { input.min = f.min ?? 1; input.step = 1; }
    if (f.type === 'datetime-local') input.step = 1;
    input.value = f.value ?? '';
    label.append(input);
    inputs.set(f.name, input);
    return label;
  }));
  let key = newKey();
  let last = '';
  el('ask-form').onsubmit = async (event) => {
    event.preventDefault();
    const values = {};
    try {
      for (const f of fields) values[f.name] = f.read ? f.read(inputs.get(f.name).value.trim(), inputs) : inputs.get(f.name).value.trim();
    } catch (problem) {
      setText(el('ask-error'), problem);
      return;
    }
    const now = JSON.stringify(values);
    if (now !== last) key = newKey(); // other words are another change
    last = now;
    el('ask-ok').disabled = true;
    const res = await send(values, key);
    el('ask-ok').disabled = false;
    if (!res.ok) {
      setText(el('ask-error'), say(res) + (lost(res) ? ' It may have been done: sending it again is safe.' : ''));
      if (!lost(res)) last = ''; // it was refused: a further try is another change
      return;
    }
    el('ask').close();
    announce(title + ': done');
    done(res.data);
  };
  el('ask').showModal();
  (inputs.size ? [...inputs.values()][0] : el('ask-no')).focus();
}
el('ask-no').addEventListener('click', () => el('ask').close());

const units = (name) => (text) => {
  const n = Number(text);
  if (!Number.isSafeInteger(n) || n < 1) throw name + ' must be a whole number, 1 or more.';
  return n;
};
const time = (name) => (text) => {
  const t = new Date(text);
  if (Number.isNaN(t.getTime())) throw name + ' must be a date and a time.';
  return t.toISOString();
};
const forInput = (date) => new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19);

// ---- charts ----
// chart draws what was added to it: { series: [names] }. Each point is { at, values by name }.
function chart(svg, caption, names, top) {
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
function stack(node, sale, queued = 0) {
  const total = Math.max(1, sale.total);
  queued = Math.min(queued, sale.available);
  const parts = { sold: sale.sold, locked: sale.locked, queued };
  if (node.children.length === 0) for (const name of Object.keys(parts)) node.append(make('span', undefined, name));
  [...node.children].forEach((part) => { part.style.width = parts[part.className] / total * 100 + '%'; });
  node.title = count(sale.sold) + ' sold, ' + count(sale.locked) + ' locked, ' + (queued ? count(queued) + ' queued, ' : '') + count(sale.available - queued) + ' available';
  node.setAttribute('aria-label', node.title);
}

// ---- views ----
// A view draws into main and looks again for as long as alive() is true.
const views = {
  sales(alive) {
    const { root, $ } = copy('sales-view');
    el('main').replaceChildren(root);
    let pages = 1;
    const look = async () => {
      const sales = [];
      let next = '';
      for (let i = 0; i < pages; i++) {
        const res = await api('GET', '/sales' + (next ? '?cursor=' + next : ''));
        if (!alive() || !told(res)) return;
        sales.push(...res.data.sales);
        next = res.data.next;
        if (!next) break;
      }
      setHidden($('empty'), sales.length > 0);
      setHidden($('more'), !next);
      rows($('rows'), sales, (s) => s.id, (s) => {
        const link = make('a', s.title);
        link.href = '#/sales/' + s.id;
        const name = make('span');
        name.append(link, make('span', ' ' + s.id + (s.kind === 'coupon' ? ', coupons' : ''), 'muted'));
        const state = make('span');
        setState(state, stateOf(s), stateWords[stateOf(s)] || s.state);
        const bar = make('div', undefined, 'stack');
        stack(bar, s);
        return [[name, 'text'], state, [bar, 'wide'], [count(s.sold), 'n'], [count(s.locked), 'n'], [count(s.available), 'n'], [count(s.standby.waiting), 'n'],
          [brief(s.starts_at) + ' – ' + brief(s.ends_at), 'muted']];
      });
    };
    $('new').addEventListener('click', () => {
      const soon = new Date(Date.now() + 600000), late = new Date(Date.now() + 4200000);
      ask({
        title: 'New sale', ok: 'Create', words: 'Times are of this browser\'s time zone. A start in the past opens it at once.',
        fields: [
          { name: 'title', label: 'Title', read: (t) => { if (!t) throw 'Title: it needs one.'; return t; } },
          { name: 'currency', label: 'Currency', value: 'EUR', read: (t) => t.toUpperCase() },
          { name: 'price', label: 'Price', value: '10.00', read: (t, all) => {
            const minor = Math.round(Number(t) * 10 ** digits(all.get('currency').value.trim().toUpperCase()));
            if (!Number.isSafeInteger(minor) || minor < 0 || t === '') throw 'Price must be a number, 0 or more.';
            return minor;
          } },
          { name: 'stock', label: 'Units', type: 'number', value: '100', read: units('Units') },
          { name: 'per_user_limit', label: 'Units that one shopper may have', type: 'number', value: '1', read: units('The limit') },
          { name: 'pay_within_s', label: 'Seconds to pay', type: 'number', value: '900', read: units('Seconds') },
          { name: 'starts_at', label: 'Starts', type: 'datetime-local', value: forInput(soon), read: time('Starts') },
          { name: 'ends_at', label: 'Ends', type: 'datetime-local', value: forInput(late), read: time('Ends') },
        ],
        send: (values, key) => api('POST', '/sales', { body: values, key }),
        done: (sale) => { location.hash = '#/sales/' + sale.id; },
      });
    });
    $('more').addEventListener('click', () => { pages++; look(); });
    return look;
  },

  sale(alive, id) {
    const { root, $ } = copy('sale-view');
    el('main').replaceChildren(root);
    $('orders').href = '#/orders?sale_id=' + id;
    let sale = null, queued = 0;
    const add = chart($('chart'), $('chart-words'), ['sold', 'locked', 'queued'], () => sale.total);
    const draw = (fresh) => {
      sale = fresh;
      const state = stateOf(sale), over = Boolean(sale.closed_at || sale.archived_at);
      document.title = sale.title + ' – Floodgate console';
      setText($('title'), sale.title);
      setState($('state'), state, stateWords[state] || state);
      setText($('facts'), 'Sale ' + id + ', SKU ' + sale.sku_id + (sale.kind === 'coupon' ? ', coupons' : ', ' + money(sale.price, sale.currency)) + '. ' +
        moment(sale.starts_at) + ' – ' + moment(sale.ends_at) + '. ' + sale.per_user_limit + ' for each shopper, ' + age(sale.pay_within_s * 1000) + ' to pay.' +
        (sale.tranches.length > 1 ? ' ' + sale.tranches.length + ' tranches, the last at ' + moment(sale.tranches.at(-1).at) + '.' : ''));
      setHidden($('pause'), sale.paused || over);
      setHidden($('resume'), !sale.paused || over);
      for (const name of ['restock', 'close']) setHidden($(name), over);
      setHidden($('edit'), over || sale.kind === 'coupon'); // a campaign's own members are PATCH /coupons
      setHidden($('rebuild'), Boolean(sale.archived_at));
      setHidden($('archive'), Boolean(sale.archived_at) || !(over || sale.state === 'ended'));
      stack($('stack'), sale, queued);
      const waiting = Math.min(queued, sale.available);
      setText($('sold'), count(sale.sold));
      setText($('locked'), count(sale.locked));
      setText($('queued'), count(waiting));
      setText($('available'), count(sale.available - waiting));
      setText($('total'), count(sale.total));
      setText($('standby'), count(sale.standby.waiting));
    };
    const look = async () => {
      const res = await api('GET', '/sales/' + id);
      if (!alive() || !told(res)) return;
      draw(res.data);
      add({ sold: sale.sold, locked: sale.locked, queued: Math.min(queued, sale.available) });
    };
    every(QUEUE_EVERY, alive, async () => {
      const res = await api('GET', '/queue');
      if (alive() && res.ok) queued = res.data.outboxes.find((o) => o.sale_id === id)?.depth || 0;
    });
    const post = (what) => (body) => (values, key) => api('POST', '/sales/' + id + '/' + what, { key, body: body ? body(values) : undefined, timeout: 130000 });
    const audited = (a) => {
      setState($('balanced'), a.balanced ? 'good' : 'bad', a.balanced ? 'balanced' : 'not balanced');
      setText($('audit-words'), moment(a.checked_at) + ': ' + count(a.available) + ' available + ' + count(a.queued) + ' queued + ' + count(a.locked) + ' locked + ' + count(a.sold) + ' sold' +
        (a.balanced ? ' = ' : ', of ') + count(a.total) + '. Redis: gate ' + (a.redis.gate || 'not loaded') + ', epoch ' + a.redis.epoch + '; MySQL: ' + count(a.mysql.orders) + ' orders, ' +
        count(a.mysql.live_orders) + ' of them live.');
      $('findings').replaceChildren(...a.findings.map((f) => {
        const item = make('li');
        item.append(make('strong', f.equation + ': '), f.detail + ' ', make('em', f.fix));
        return item;
      }));
    };
    const audit = async () => {
      $('audit').disabled = true;
      const res = await api('GET', '/sales/' + id + '/audit');
      if (!alive()) return;
      $('audit').disabled = false;
      if (res.ok) audited(res.data); else setText($('audit-words'), say(res));
    };
    $('audit').addEventListener('click', audit);
    $('pause').addEventListener('click', () => ask({ title: 'Pause the sale', ok: 'Pause', words: 'Nobody can order until it is resumed. Orders that there are can be paid.', send: post('pause')(), done: draw }));
    $('resume').addEventListener('click', () => ask({ title: 'Resume the sale', ok: 'Resume', send: post('resume')(), done: draw }));
    $('restock').addEventListener('click', () => ask({
      title: 'Restock', ok: 'Add units', words: 'Units are added to what is available. A sale of a shared SKU takes them from what that has left.',
      fields: [{ name: 'quantity', label: 'Units', type: 'number', value: '10', read: units('Units') }], send: post('restock')((v) => v), done: draw,
    }));
    $('rebuild').addEventListener('click', () => ask({
      title: 'Rebuild the sale in Redis', ok: 'Rebuild', words: 'Redis is written anew from MySQL and what is on its way. Nobody can order meanwhile, for a moment. Nothing that was promised is lost.',
      send: post('rebuild')(), done: (a) => { if (a.findings) audited(a); look(); },
    }));
    $('close').addEventListener('click', () => ask({
      title: 'Close the sale for good', ok: 'Close it', danger: true, words: 'This cannot be taken back. Orders that there are stay; unsold units go back to the SKU.', send: post('close')(), done: draw,
    }));
    $('archive').addEventListener('click', () => ask({
      title: 'Archive the sale', ok: 'Archive it', danger: true, words: 'Once every order has ended and the audit balances, its keys leave Redis. Its orders are answered from MySQL for ever.', send: post('archive')(), done: draw,
    }));
    $('edit').addEventListener('click', () => {
      const before = sale;
      ask({
        title: 'Change the sale', ok: 'Change', words: 'It reaches every gateway within a second.',
        fields: [
          { name: 'title', label: 'Title', value: before.title },
          { name: 'starts_at', label: 'Starts', type: 'datetime-local', value: forInput(new Date(before.starts_at)), read: time('Starts') },
          { name: 'ends_at', label: 'Ends', type: 'datetime-local', value: forInput(new Date(before.ends_at)), read: time('Ends') },
          { name: 'per_user_limit', label: 'Units that one shopper may have', type: 'number', value: before.per_user_limit, read: units('The limit') },
          { name: 'pay_within_s', label: 'Seconds to pay', type: 'number', value: before.pay_within_s, read: units('Seconds') },
        ],
        send: (values, key) => {
          const changed = {};
          for (const [name, value] of Object.entries(values)) {
            const same = name.endsWith('_at') ? Math.floor(Date.parse(before[name]) / 1000) === Math.floor(Date.parse(value) / 1000) : before[name] === value;
            if (!same) changed[name] = value;
          }
          if (Object.keys(changed).length === 0) return { ok: false, status: 400, data: { detail: 'Nothing is different.' } };
          return api('PATCH', '/sales/' + id, { body: changed, key, version: before.version });
        },
        done: draw,
      });
    });
    $('csv').addEventListener('click', async () => {
      $('csv').disabled = true;
      const res = await api('GET', '/sales/' + id + '/orders.csv', { as: 'blob', timeout: 600000 });
      $('csv').disabled = false;
      if (!res.ok) { told(res); return; }
      const link = make('a');
      link.href = URL.createObjectURL(res.data);
      link.download = 'sale-' + id + '-orders.csv';
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    });
    return look;
  },

  orders(alive, query) {
    const { root, $ } = copy('orders-view');
    el('main').replaceChildren(root);
    $('uid').value = query.get('uid') || '';
    $('sale').value = query.get('sale_id') || '';
    $('status').value = query.get('status') || '';
    let found = [], next = '';
    const draw = () => {
      setHidden($('more'), !next);
      rows($('rows'), found, (o) => o.order_id, (o) => {
        const state = make('span');
        setState(state, o.status, o.status.replace('_', ' ') + (o.reason ? ': ' + o.reason : ''));
        let act = make('span');
        if (o.status === 'pending_payment') {
          act = make('button', 'Cancel…', 'quiet danger');
          act.type = 'button';
          act.addEventListener('click', () => ask({
            title: 'Cancel order ' + o.order_id, ok: 'Cancel the order', danger: true, words: 'Its units go back on sale. The shopper may order again.',
            send: (_, key) => api('POST', '/orders/' + o.order_id + '/cancel', { key }), done: () => search(),
          }));
        }
        const id = make('code', o.order_id);
        return [id, o.uid, [o.sale_id || 'cart', 'n'], [count(o.quantity), 'n'], state, moment(o.created_at), act];
      });
    };
    const search = async (cursor = '') => {
      const wanted = new URLSearchParams();
      if ($('uid').value.trim()) wanted.set('uid', $('uid').value.trim());
      if ($('sale').value.trim()) wanted.set('sale_id', $('sale').value.trim());
      if ($('status').value) wanted.set('status', $('status').value);
      history.replaceState(null, '', '#/orders?' + wanted);
      if (cursor) wanted.set('cursor', cursor);
      wanted.set('limit', '50');
      const res = await api('GET', '/orders?' + wanted);
      if (!alive()) return;
      setText($('error'), res.ok ? '' : say(res));
      if (!res.ok) return;
      found = cursor ? [...found, ...res.data.orders] : res.data.orders;
      next = res.data.next;
      setHidden($('empty'), found.length > 0);
      setText($('empty'), 'MySQL has no such order. What is still queued is told by its status page.');
      draw();
    };
    $('form').addEventListener('submit', (event) => { event.preventDefault(); search(); });
    $('more').addEventListener('click', () => search(next));
    if (query.size > 0) search();
    return null;
  },

  queue(alive) {
    const { root, $ } = copy('queue-view');
    el('main').replaceChildren(root);
    const add = chart($('chart'), $('chart-words'), ['queued']);
    return async () => {
      const res = await api('GET', '/queue');
      if (!alive() || !told(res)) return;
      const q = res.data;
      setText($('depth'), count(q.depth));
      setText($('oldest'), q.depth ? age(q.oldest_age_ms) : '–');
      setText($('pending'), count(q.pending));
      setText($('ready'), count(q.ready));
      setText($('unacked'), q.unacked < 0 ? 'not known' : count(q.unacked));
      setText($('intents'), count(q.intents));
      add({ queued: q.depth });
      setHidden($('broker-error'), !q.broker_error);
      setText($('broker-error'), 'The broker does not say how its queues are: ' + q.broker_error);
      rows($('outboxes'), q.outboxes, (o) => o.sale_id, (o) => [[o.sale_id, 'n'], [count(o.depth), 'n'], [o.depth ? age(o.oldest_age_ms) : '–', 'n'], [count(o.pending), 'n'],
        [o.consumers.map((c) => c.name + (c.pending ? ': ' + count(c.pending) + ' for ' + age(c.held_ms) : ': idle')).join('; ') || '–', 'text']]);
      setHidden($('none'), q.outboxes.length > 0);
      setHidden($('broker'), q.queues.length === 0);
      rows($('queues'), q.queues, (b) => b.name, (b) => [make('code', b.name), [count(b.depth), 'n'], [count(b.ready), 'n'], [b.unacked < 0 ? '–' : count(b.unacked), 'n'], [count(b.consumers), 'n']]);
    };
  },

  letters(alive) {
    const { root, $ } = copy('letters-view');
    el('main').replaceChildren(root);
    const shown = new Map();
    const put = (letter, old) => {
      let view = shown.get(letter.id);
      if (!view) {
        view = copy('letter');
        shown.set(letter.id, view);
        view.$('replay').addEventListener('click', async () => {
          view.$('replay').disabled = true;
          const res = await api('POST', '/dead-letters/' + letter.id + '/replay', { key: newKey() });
          view.$('replay').disabled = false;
          setText(view.$('result'), res.ok ? res.data.result + (res.data.detail ? ': ' + res.data.detail : '') : say(res));
          if (res.ok) put({ ...res.data, payload: letter.payload });
        });
        if (old) $('list').append(view.root); else $('list').prepend(view.root);
      }
      setText(view.$('reason'), letter.reason);
      setState(view.$('state'), letter.replayed_at ? 'good' : 'warn', letter.replayed_at ? 'replayed' : 'open');
      setText(view.$('facts'), 'Letter ' + letter.id + ' of ' + letter.queue + ', ' + moment(letter.last_at) + (letter.order_id ? '; order ' + letter.order_id + (letter.status ? ', ' + letter.status : '') : '') +
        '; died ' + letter.times + (letter.times === 1 ? ' time' : ' times') + ', ' + letter.deliveries + ' deliveries, ' + count(letter.size) + ' bytes' + (letter.encoding === 'base64' ? ', shown in base64' : '') + '.');
      setText(view.$('payload'), letter.payload);
    };
    let next = '';
    const page = async (cursor) => {
      const res = await api('GET', '/dead-letters?limit=20' + (cursor ? '&cursor=' + cursor : ''));
      if (!alive() || !told(res)) return;
      const list = res.data.dead_letters;
      for (const letter of cursor ? list : [...list].reverse()) put(letter, Boolean(cursor));
      if (cursor || !next) next = res.data.next;
      setHidden($('more'), !next);
      setHidden($('empty'), shown.size > 0);
    };
    $('more').addEventListener('click', () => page(next));
    return () => page('');
  },

  log(alive) {
    const { root, $ } = copy('log-view');
    el('main').replaceChildren(root);
    let entries = [], next = '';
    const word = (v) => (v === undefined ? '–' : typeof v === 'string' ? v : JSON.stringify(v));
    const changes = (e) => {
      const { before, after } = e;
      if (before) {
        return Object.keys({ ...before, ...after }).filter((k) => JSON.stringify(before[k]) !== JSON.stringify((after || {})[k]))
          .map((k) => k + ': ' + word(before[k]) + ' → ' + word((after || {})[k])).join('; ');
      }
      const all = Object.entries(after || {}).map(([k, v]) => k + ': ' + word(v));
      if (all.length < 4) return all.join('; ');
      const box = make('details');
      box.append(make('summary', after.title || all[0]), all.join('; '));
      return box;
    };
    const page = async (cursor) => {
      const res = await api('GET', '/audit-log?limit=50' + (cursor ? '&cursor=' + cursor : ''));
      if (!alive() || !told(res)) return;
      if (cursor) { entries.push(...res.data.entries); next = res.data.next; } else {
        const known = new Set(entries.map((e) => e.id));
        const fresh = res.data.entries.filter((e) => !known.has(e.id));
        if (entries.length === 0) next = res.data.next;
        entries = [...fresh, ...entries];
      }
      setHidden($('more'), !next);
      rows($('rows'), entries, (e) => e.id, (e) => [moment(e.at), e.who, e.action, e.target, [changes(e), 'text']], true);
    };
    $('more').addEventListener('click', () => page(next));
    return () => page('');
  },
};

// every runs look at once and then about each ms, for as long as alive() is true and the page is looked at.
async function every(ms, alive, look) {
  while (alive()) {
    if (document.visibilityState === 'visible') await look();
    await sleep(ms);
  }
}

let shown = 0; // counts views: an older one is not alive
function route() {
  const mine = ++shown;
  const alive = () => mine === shown;
  setHidden(el('lost'), true);
  document.title = 'Floodgate console';
  if (el('ask').open) el('ask').close();
  setHidden(el('nav'), token === null);
  setHidden(el('leave'), token === null);
  if (token === null) { enter(); return; }
  const [path, query = ''] = location.hash.slice(1).split('?');
  const [, name = '', id = ''] = path.split('/');
  for (const link of el('nav').children) {
    if (link.getAttribute('href') === '#/' + (name || 'sales')) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  let look;
  if (name === 'sales' && /^[1-9]\d{0,15}$/.test(id)) look = views.sale(alive, Number(id));
  else if (name === 'orders') look = views.orders(alive, new URLSearchParams(query));
  else look = (Object.hasOwn(views, name) && name !== 'sale' ? views[name] : views.sales)(alive);
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
    const res = await tryToken(value);
    $('ok').disabled = false;
    if (!res.ok) { setText($('error'), res.status === 401 ? 'This is not the admin token.' : say(res)); return; }
    keep(value);
    route();
  });
  $('token').focus();
}
async function tryToken(value) {
  try {
    const res = await fetch('/admin/v1/audit-log?limit=1', { headers: { Authorization: 'Bearer ' + value }, cache: 'no-store', redirect: 'error' });
    return { ok: res.ok, status: res.status, data: await res.json().catch(() => ({})) };
  } catch { return { ok: false, status: 0, data: {} }; }
}
function leave(why) {
  keep(null);
  route();
  if (why) setText(el('main').querySelector('[data-el=error]'), why);
}
el('leave').addEventListener('click', () => leave(''));
addEventListener('hashchange', route);

// ---- how the backend is ----
every(HEALTH_EVERY, () => true, async () => {
  const res = await call('GET', '/-/ready', { timeout: 4000 });
  const reasons = res.data.reasons || [];
  setState(el('health'), res.ok ? 'good' : 'bad', res.ok ? 'Ready' : res.status === 0 ? 'No answer' : 'Not ready');
  setHidden(el('reasons'), reasons.length === 0);
  setText(el('reasons'), reasons.join('; '));
  if (token === null) return;
  const queue = await api('GET', '/queue');
  if (!queue.ok) return;
  setHidden(el('letters-count'), queue.data.dead_letters === 0);
  setText(el('letters-count'), count(queue.data.dead_letters));
});
route();
