// One sale.

import { api, patch, say, told } from './api.js';
import { ask, forInput, needed, time, uids, units } from './ask.js';
import { audits } from './audit.js';
import { chart, stack } from './chart.js';
import { SLOWLY, age, copy, count, el, every, make, moment, money, rows, setHidden, setState, setText, stateOf, stateWords } from './page.js';
import { preflight } from './preflight.js';
import { campaign } from './sales.js';

export function sale(alive, id) {
  const { root, $ } = copy('sale-view');
  el('main').replaceChildren(root);
  $('orders').href = '#/orders?sale_id=' + id;
  const path = '/sales/' + id;
  let sale = null, queued = 0;
  const add = chart($('chart'), $('chart-words'), ['sold', 'locked', 'queued'], () => sale.total);
  const draw = (fresh) => {
    sale = fresh;
    const coupons = sale.kind === 'coupon', state = stateOf(sale), over = Boolean(sale.closed_at || sale.archived_at);
    document.title = sale.title + ' – Floodgate console';
    setText($('title'), sale.title);
    setState($('state'), state, stateWords[state] || state);
    setText($('facts'), 'Sale ' + id + ', SKU ' + sale.sku_id + (coupons ? ', coupons' + (sale.category ? ' of ' + sale.category : '') + (sale.published ? '' : ', not published') : ', ' + money(sale.price, sale.currency)) + '. ' +
      moment(sale.starts_at) + ' – ' + moment(sale.ends_at) + '. ' + sale.per_user_limit + ' for each shopper' + (coupons ? '.' : ', ' + age(sale.pay_within_s * 1000) + ' to pay.') +
      (sale.tranches.length > 1 ? ' ' + sale.tranches.length + ' tranches, the last at ' + moment(sale.tranches.at(-1).at) + '.' : ''));
    setHidden($('pause'), sale.paused || over);
    setHidden($('resume'), !sale.paused || over);
    for (const name of ['restock', 'close', 'edit']) setHidden($(name), over);
    $('edit').dataset.needs = coupons ? 'admin' : 'operator';
    setHidden($('rebuild'), Boolean(sale.archived_at));
    setHidden($('archive'), Boolean(sale.archived_at) || !(over || sale.state === 'ended'));
    const waiting = Math.min(queued, sale.available);
    stack($('stack'), sale.total, { sold: sale.sold, locked: sale.locked, queued: waiting });
    setText($('sold'), count(sale.sold));
    setText($('locked'), count(sale.locked));
    setText($('queued'), count(waiting));
    setText($('available'), count(sale.available - waiting));
    setText($('total'), count(sale.total));
    setText($('standby'), count(sale.standby.waiting));
  };
  const look = async () => {
    const res = await api('GET', path);
    if (!alive() || !told(res)) return;
    draw(res.data);
    add({ sold: sale.sold, locked: sale.locked, queued: Math.min(queued, sale.available) });
  };
  every(SLOWLY, alive, async () => {
    const res = await api('GET', '/queue');
    if (alive() && res.ok) queued = res.data.outboxes.find((o) => o.sale_id === id)?.depth || 0;
  });

  const post = (what) => (body) => (values, key) => api('POST', path + '/' + what, { key, body: body ? body(values) : undefined, timeout: 130000 });
  const audited = audits($, alive, path + '/audit', (a) => count(a.available) + ' available + ' + count(a.queued) + ' queued + ' + count(a.locked) + ' locked + ' + count(a.sold) + ' sold' +
    (a.balanced ? ' = ' : ', of ') + count(a.total) + '. Redis: gate ' + (a.redis.gate || 'not loaded') + ', epoch ' + a.redis.epoch + '; MySQL: ' + count(a.mysql.orders) + ' orders, ' +
    count(a.mysql.live_orders) + ' of them live.');
  $('pause').addEventListener('click', () => ask({ title: 'Pause the sale', ok: 'Pause', words: 'Nobody can order until it is resumed. Orders that there are can be paid.', send: post('pause')(), done: draw }));
  $('resume').addEventListener('click', () => ask({ title: 'Resume the sale', ok: 'Resume', send: post('resume')(), done: draw }));
  $('restock').addEventListener('click', () => ask({
    title: 'Restock', ok: 'Add units', words: 'Units are added to what is available. A sale of a shared SKU takes them from what that has left.',
    fields: [{ name: 'quantity', label: 'Units', type: 'number', value: 10, read: units('Units') }], send: post('restock')((v) => v), done: draw,
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
    const words = 'It reaches every gateway within a second.';
    if (sale.kind === 'coupon') {
      ask({
        title: 'Change the coupons', ok: 'Change', words, send: patch('/coupons/' + id, sale), done: draw,
        fields: campaign({ ...sale, limit: sale.per_user_limit, from: forInput(new Date(sale.valid_from)), until: forInput(new Date(sale.valid_until)) }),
      });
      return;
    }
    ask({
      title: 'Change the sale', ok: 'Change', words, send: patch(path, sale), done: draw,
      fields: [
        { name: 'title', label: 'Title', value: sale.title, read: needed('Title') },
        { name: 'picture', label: 'Picture (https URL, or empty)', value: sale.picture },
        { name: 'starts_at', label: 'Starts', type: 'datetime-local', value: forInput(new Date(sale.starts_at)), read: time('Starts') },
        { name: 'ends_at', label: 'Ends', type: 'datetime-local', value: forInput(new Date(sale.ends_at)), read: time('Ends') },
        { name: 'per_user_limit', label: 'Units that one shopper may have', type: 'number', value: sale.per_user_limit, read: units('The limit') },
        { name: 'pay_within_s', label: 'Seconds to pay', type: 'number', value: sale.pay_within_s, read: units('Seconds') },
      ],
    });
  });
  $('csv').addEventListener('click', async () => {
    $('csv').disabled = true;
    const res = await api('GET', path + '/orders.csv', { as: 'blob', timeout: 600000 });
    $('csv').disabled = false;
    if (!res.ok) { told(res); return; }
    const link = make('a');
    link.href = URL.createObjectURL(res.data);
    link.download = 'sale-' + id + '-orders.csv';
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  });

  preflight($, alive, path + '/preflight');
  invitations($, alive, path);
  origins($, alive, path);
  return look;
}

// invitations is the list of the only shoppers who may buy, where the sale has one.
function invitations($, alive, sale) {
  const path = sale + '/eligibility';
  const draw = (list) => {
    setState($('listed'), list.active ? 'warn' : 'good', list.active ? 'invited shoppers only' : 'anybody');
    setText($('list-words'), list.active ? count(list.size) + (list.size === 1 ? ' shopper is' : ' shoppers are') + ' on the list.' : 'There is no list. Banned shoppers may not buy in any sale.');
    setText($('invite'), list.active ? 'Another list…' : 'Invited only…');
    for (const name of ['list-change', 'list-end']) setHidden($(name), !list.active);
  };
  every(SLOWLY, alive, async () => {
    const res = await api('GET', path + '?limit=1');
    if (!alive()) return;
    if (res.ok) draw(res.data); else setText($('list-words'), say(res));
  });
  const list = (name, label) => ({ name, label, lines: 6, read: uids });
  const words = 'One a line, or with commas or spaces between. It reaches every backend within a second.';
  $('invite').addEventListener('click', () => ask({
    title: 'Only invited shoppers may buy', ok: 'Let only these buy', danger: true, words: words + ' A list that there was is replaced.', fields: [list('uids', 'Shoppers')],
    send: (body, key) => api('PUT', path, { body, key }), done: draw,
  }));
  $('list-change').addEventListener('click', () => ask({
    title: 'Change the list', ok: 'Change', words, fields: [list('add', 'Put on the list'), list('remove', 'Take off the list')], send: (body, key) => api('POST', path, { body, key }), done: draw,
  }));
  $('list-end').addEventListener('click', () => ask({ title: 'End the list', ok: 'Let anybody buy', danger: true, send: (_, key) => api('DELETE', path, { key }), done: draw }));
}

// origins is from which networks this backend took the sale's orders.
function origins($, alive, sale) {
  const most = 10;
  every(SLOWLY, alive, async () => {
    const res = await api('GET', sale + '/concentration');
    if (!alive()) return;
    const { networks = [], orders, since } = res.data;
    setHidden($('networks-table'), networks.length === 0);
    setText($('networks-words'), !res.ok ? say(res) : (orders ? count(orders) + (orders === 1 ? ' order' : ' orders') : 'No order') + ' by this process since ' + moment(since) +
      (networks.length > most ? '; of ' + count(networks.length) + ' networks the ' + most + ' with the most.' : '.'));
    rows($('networks'), networks.slice(0, most), (n) => n.network, (n) => [make('code', n.network), [n.at_least === n.orders ? count(n.orders) : count(n.at_least) + ' – ' + count(n.orders), 'n'],
      [(n.orders / Math.max(1, orders) * 100).toFixed(1) + ' %', 'n']]);
  });
}
