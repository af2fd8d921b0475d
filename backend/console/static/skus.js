// SKUs: what sales and carts take their units from.

import { api, pages, patch, told } from './api.js';
import { ask, needed, units } from './ask.js';
import { audits } from './audit.js';
import { stack } from './chart.js';
import { copy, count, el, major, make, minor, money, rows, setHidden, setText } from './page.js';
import { newSale } from './sales.js';

const parts = (s) => ({ sold: s.sold, locked: s.locked, allotted: s.allotted });

export function skus(alive) {
  const { root, $ } = copy('skus-view');
  el('main').replaceChildren(root);
  let wanted = 1;
  const look = async () => {
    const res = await pages('/skus', 'skus', wanted);
    if (!alive() || !told(res)) return;
    setHidden($('empty'), res.items.length > 0);
    setHidden($('more'), !res.next);
    rows($('rows'), res.items, (s) => s.id, (s) => {
      const link = make('a', s.title);
      link.href = '#/skus/' + s.id;
      link.dir = 'auto'; // what a title does to its direction ends with it
      const name = make('span');
      name.append(link, make('span', ' ' + s.id + (s.own ? ', of one sale' : ''), 'muted'));
      const bar = make('div', undefined, 'stack');
      stack(bar, s.total, parts(s));
      return [[name, 'text'], [bar, 'wide'], [count(s.sold), 'n'], [count(s.locked), 'n'], [count(s.allotted), 'n'], [count(s.available), 'n'], [money(s.price, s.currency), 'n']];
    });
  };
  $('new').addEventListener('click', () => ask({
    title: 'New SKU', ok: 'Create', words: 'Carts can have it at once; sales, once units are allotted to them.',
    fields: [
      { name: 'title', label: 'Title', read: needed('Title') },
      { name: 'currency', label: 'Currency', value: 'EUR', read: (t) => t.toUpperCase() },
      { name: 'price', label: 'Price', value: '10.00', read: (t, all) => minor(t, all.get('currency').value.trim().toUpperCase()) },
      { name: 'stock', label: 'Units', type: 'number', value: 100, read: units('Units') },
    ],
    send: (body, key) => api('POST', '/skus', { body, key }), done: (s) => { location.hash = '#/skus/' + s.id; },
  }));
  $('more').addEventListener('click', () => { wanted++; look(); });
  return look;
}

export function sku(alive, id) {
  const { root, $ } = copy('sku-view');
  el('main').replaceChildren(root);
  const path = '/skus/' + id;
  let sku = null;
  const draw = (fresh) => {
    sku = fresh;
    document.title = sku.title + ' – Floodgate console';
    setText($('title'), sku.title);
    setText($('facts'), 'SKU ' + id + ', ' + money(sku.price, sku.currency) + '. ' +
      (sku.own ? 'It was made for one sale: restock and rebuild that.' : 'Locked and sold are carts\' units; allotted ones are its sales\'.'));
    for (const name of ['restock', 'rebuild']) setHidden($(name), sku.own);
    stack($('stack'), sku.total, parts(sku));
    for (const name of ['sold', 'locked', 'allotted', 'available', 'total']) setText($(name), count(sku[name]));
  };
  const look = async () => {
    const res = await api('GET', path);
    if (alive() && told(res)) draw(res.data);
  };
  const audited = audits($, alive, path + '/audit', (a) => count(a.available) + ' available + ' + count(a.allotted) + ' allotted + ' + count(a.locked) + ' locked + ' + count(a.sold) + ' sold' +
    (a.balanced ? ' = ' : ', of ') + count(a.total) + '. Redis: ' + (a.redis.loaded ? 'loaded, epoch ' + a.redis.epoch : 'not loaded, the next cart loads it') + '.');
  $('edit').addEventListener('click', () => ask({
    title: 'Change the SKU', ok: 'Change', words: 'Its next sales and carts take this over; what there is keeps its own.',
    fields: [
      { name: 'title', label: 'Title', value: sku.title, read: needed('Title') },
      { name: 'price', label: 'Price in ' + sku.currency, value: major(sku.price, sku.currency), read: (t) => minor(t, sku.currency) },
    ],
    send: patch(path, sku), done: draw,
  }));
  $('restock').addEventListener('click', () => ask({
    title: 'Restock', ok: 'Add units', words: 'Units are added to what is available.', fields: [{ name: 'quantity', label: 'Units', type: 'number', value: 10, read: units('Units') }],
    send: (body, key) => api('POST', path + '/restock', { body, key }), done: draw,
  }));
  $('sale').addEventListener('click', () => newSale(sku));
  $('rebuild').addEventListener('click', () => ask({
    title: 'Rebuild the SKU in Redis', ok: 'Rebuild', words: 'Redis is written anew from MySQL. Nobody can order it in a cart meanwhile, for a moment.',
    send: (_, key) => api('POST', path + '/rebuild', { key, timeout: 130000 }), done: (a) => { audited(a); look(); },
  }));
  return look;
}
