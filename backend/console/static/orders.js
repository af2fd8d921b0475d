// Orders, and what was paid for them.

import { api, say, told } from './api.js';
import { ask } from './ask.js';
import { copy, count, el, make, moment, money, rows, setHidden, setState, setText } from './page.js';

export function orders(alive, query) {
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
        act.dataset.needs = 'operator';
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
}

export function payments(alive, query) {
  const { root, $ } = copy('payments-view');
  el('main').replaceChildren(root);
  $('status').value = query.get('status') || '';
  let found = [], next = '';
  const page = async (cursor) => {
    const wanted = new URLSearchParams({ limit: '50' });
    if ($('status').value) wanted.set('status', $('status').value);
    if (cursor) wanted.set('cursor', cursor);
    const res = await api('GET', '/payments?' + wanted);
    if (!alive() || !told(res)) return;
    found = cursor ? [...found, ...res.data.payments] : res.data.payments;
    next = res.data.next;
    setHidden($('more'), !next);
    setHidden($('empty'), found.length > 0);
    rows($('rows'), found, (p) => p.id, (p) => {
      const state = make('span');
      setState(state, p.status, p.status.replace('_', ' ') + (p.reason ? ': ' + p.reason : ''));
      return [moment(p.last_at), p.provider, [make('code', p.payment_id), 'text'], make('code', p.order_id), [money(p.amount, p.currency), 'n'], state];
    });
  };
  $('status').addEventListener('change', () => {
    history.replaceState(null, '', '#/payments' + ($('status').value ? '?status=' + $('status').value : ''));
    page('');
  });
  $('more').addEventListener('click', () => page(next));
  page('');
  return null;
}
