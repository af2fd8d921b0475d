// All sales, and what makes a new one.

import { api, pages, told } from './api.js';
import { ask, forInput, needed, time, units, yes } from './ask.js';
import { stack } from './chart.js';
import { live } from './live.js';
import { brief, copy, count, el, make, minor, rows, setHidden, setState, stateOf, stateWords } from './page.js';

export function sales(alive) {
  const { root, $ } = copy('sales-view');
  el('main').replaceChildren(root);
  let wanted = 1;
  const look = async () => {
    const res = await pages('/sales', 'sales', wanted);
    if (!alive() || !told(res)) return;
    setHidden($('more'), !res.next);
    draw(res.items);
  };
  let all = [];
  const draw = (list) => {
    all = list;
    setHidden($('empty'), list.length > 0);
    rows($('rows'), list, (s) => s.id, (s) => {
      const link = make('a', s.title);
      link.href = '#/sales/' + s.id;
      link.dir = 'auto'; // what a title does to its direction ends with it
      const name = make('span');
      name.append(link, make('span', ' ' + s.id + (s.kind === 'coupon' ? ', coupons' + (s.published ? '' : ', not published') : ''), 'muted'));
      const state = make('span');
      setState(state, stateOf(s), stateWords[stateOf(s)] || s.state);
      const bar = make('div', undefined, 'stack');
      stack(bar, s.total, { sold: s.sold, locked: s.locked });
      return [[name, 'text'], state, [bar, 'wide'], [count(s.sold), 'n'], [count(s.locked), 'n'], [count(s.available), 'n'], [count(s.standby.waiting), 'n'],
        [brief(s.starts_at) + ' – ' + brief(s.ends_at), 'muted']];
    });
  };
  $('new').addEventListener('click', () => newSale());
  $('new-coupons').addEventListener('click', newCampaign);
  $('more').addEventListener('click', () => { wanted++; look(); });
  look.live = () => draw([...live.last.sales, ...all.filter((s) => s.id < live.last.sales.at(-1)?.id)]);
  return look;
}

const soon = () => forInput(new Date(Date.now() + 600000));
const late = () => forInput(new Date(Date.now() + 4200000));
const open = (sale) => { location.hash = '#/sales/' + sale.id; };
const localTime = 'Times are of this browser\'s time zone. A start in the past opens it at once.';

// newSale asks for a sale of a SKU, or of one of its own.
export function newSale(sku) {
  const own = [
    { name: 'title', label: 'Title', read: needed('Title') },
    { name: 'currency', label: 'Currency', value: 'EUR', read: (t) => t.toUpperCase() },
    { name: 'price', label: 'Price', value: '10.00', read: (t, all) => minor(t, all.get('currency').value.trim().toUpperCase()) },
  ];
  ask({
    title: sku ? 'New sale of ' + sku.title : 'New sale', ok: 'Create', words: localTime + (sku ? ' Its units are taken from what is available.' : ''),
    fields: [
      ...(sku ? [] : own),
      { name: 'stock', label: 'Units', type: 'number', value: sku ? Math.min(100, sku.available) : 100, read: units('Units') },
      { name: 'per_user_limit', label: 'Units that one shopper may have', type: 'number', value: 1, read: units('The limit') },
      { name: 'pay_within_s', label: 'Seconds to pay', type: 'number', value: 900, read: units('Seconds') },
      { name: 'starts_at', label: 'Starts', type: 'datetime-local', value: soon(), read: time('Starts') },
      { name: 'ends_at', label: 'Ends', type: 'datetime-local', value: late(), read: time('Ends') },
      { name: 'parts', label: 'Parts in which the units are released', type: 'number', value: 1, read: (t, all) => {
        const n = units('Parts')(t);
        if (n > Number(all.get('stock').value)) throw 'There are more parts than units.';
        return n;
      } },
      { name: 'apart', label: 'Minutes between two parts', type: 'number', value: 10, read: units('Minutes') },
      { name: 'picture', label: 'Picture (https URL, or empty)' },
    ],
    send: ({ parts, apart, ...body }, key) => {
      if (sku) body.sku_id = sku.id;
      if (parts > 1) body.tranches = tranches(body.stock, Date.parse(body.starts_at), parts, apart * 60000);
      return api('POST', '/sales', { body, key });
    },
    done: open,
  });
}

// tranches are n parts of the units, as equal as they can be, so many ms apart.
const tranches = (total, start, n, apart) =>
  Array.from({ length: n }, (_, i) => ({ at: new Date(start + i * apart).toISOString(), quantity: Math.floor(total / n) + (i < total % n ? 1 : 0) }));

// campaign is the fields of a coupon campaign that may change.
export const campaign = (c) => [
  { name: 'title', label: 'Title', value: c.title, read: needed('Title') },
  { name: 'category', label: 'Category', value: c.category },
  { name: 'valid_from', label: 'Claimed from', type: 'datetime-local', value: c.from, read: time('Claimed from') },
  { name: 'valid_until', label: 'Claimed and used until', type: 'datetime-local', value: c.until, read: time('Until') },
  { name: 'per_user_limit', label: 'Coupons that one shopper may have', type: 'number', value: c.limit, read: units('The limit') },
  { name: 'published', label: 'Shoppers are told of it', options: ['yes', 'no'], value: c.published ? 'yes' : 'no', read: yes },
  { name: 'guard', label: 'How MySQL guards its stock', options: ['conditional', 'version'], value: c.guard },
  { name: 'picture', label: 'Picture (https URL, or empty)', value: c.picture },
];

function newCampaign() {
  const [title, ...others] = campaign({ limit: 1, from: soon(), until: late(), published: true, guard: 'conditional' });
  ask({
    title: 'New coupons', ok: 'Create', words: localTime, fields: [title, { name: 'total', label: 'Coupons', type: 'number', value: 100, read: units('Coupons') }, ...others],
    send: (body, key) => api('POST', '/coupons', { body, key }), done: open,
  });
}
