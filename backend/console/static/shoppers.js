// Shoppers: why one did not get one, and who may not buy.

import { api, pages, say, told } from './api.js';
import { ask, uids } from './ask.js';
import { copy, count, el, make, moment, setHidden, setState, setText } from './page.js';

export function shoppers(alive, query) {
  const { root, $ } = copy('shoppers-view');
  el('main').replaceChildren(root);
  $('uid').value = query.get('uid') || '';
  $('sale').value = query.get('sale_id') || '';
  let wanted = 1;
  const change = (body, key) => api('POST', '/bans', { body, key });
  const look = async () => {
    const res = await pages('/bans?limit=200', 'uids', wanted);
    if (!alive() || !told(res)) return;
    setHidden($('none'), res.items.length > 0);
    setHidden($('more'), !res.next);
    const here = [...$('banned').children].map((li) => li.textContent);
    if (here.join() !== res.items.join()) {
      $('banned').replaceChildren(...res.items.map((uid) => {
        const item = make('li'), link = make('a', uid);
        link.href = '#/shoppers?uid=' + encodeURIComponent(uid);
        item.append(link);
        return item;
      }));
    }
  };

  const one = async () => {
    const uid = $('uid').value.trim(), sale = $('sale').value.trim();
    const wanted = new URLSearchParams();
    if (uid) wanted.set('uid', uid);
    if (sale) wanted.set('sale_id', sale);
    history.replaceState(null, '', '#/shoppers?' + wanted);
    setHidden($('shopper'), true);
    setHidden($('story'), true);
    if (!uid) { setText($('error'), 'Shopper: please fill this in.'); return; }
    const ban = await api('GET', '/bans?uid=' + encodeURIComponent(uid));
    if (!alive()) return;
    setText($('error'), ban.ok ? '' : say(ban));
    if (!ban.ok) return;
    const banned = ban.data.uids.length > 0;
    setHidden($('shopper'), false);
    setText($('name'), uid);
    setState($('may'), banned ? 'bad' : 'good', banned ? 'banned' : 'not banned');
    setText($('ban'), banned ? 'Lift the ban…' : 'Ban…');
    $('ban').onclick = () => ask({
      title: (banned ? 'Lift the ban of ' : 'Ban ') + uid, ok: banned ? 'Lift it' : 'Ban', danger: !banned, words: 'It reaches every backend within a second. Orders that there are stand.',
      send: (_, key) => change(banned ? { remove: [uid] } : { add: [uid] }, key), done: () => { one(); look(); },
    });
    $('revoke').onclick = () => ask({
      title: 'Sign ' + uid + ' out everywhere', ok: 'Sign out', danger: true, words: 'Tokens that were issued before now are refused within a second. Orders that there are stand.',
      send: (_, key) => api('POST', '/revocations', { body: { uid }, key }), done: one,
    });
    $('orders').href = '#/orders?' + wanted;
    if (sale) await story(uid, sale);
  };
  const story = async (uid, sale) => {
    const of = encodeURIComponent(sale);
    const [res, list] = await Promise.all([api('GET', '/timeline?uid=' + encodeURIComponent(uid) + '&sale_id=' + of), api('GET', '/sales/' + of + '/eligibility?uid=' + encodeURIComponent(uid))]);
    if (!alive()) return;
    setText($('error'), res.ok ? '' : say(res));
    if (!res.ok) return;
    const t = res.data;
    setHidden($('story'), false);
    setHidden($('uninvited'), !(list.ok && list.data.active && list.data.uids.length === 0));
    setText($('note'), t.note);
    setHidden($('missing'), t.complete);
    setText($('missing'), t.missing.join(' '));
    $('events').replaceChildren(...t.events.map((e) => {
      const item = make('li'), what = make('strong', e.what.replace('_', ' ') + (e.count > 1 ? ', ' + count(e.count) + ' times' : ''));
      const when = make('time', moment(e.at) + (e.until === null ? ' – now' : moment(e.until) === moment(e.at) ? '' : ' – ' + moment(e.until)));
      when.dateTime = e.at;
      item.append(what, when, make('p', e.detail + (e.order_id ? ' Order ' + e.order_id + '.' : '')));
      return item;
    }));
  };

  $('form').addEventListener('submit', (event) => { event.preventDefault(); one(); });
  $('more').addEventListener('click', () => { wanted++; look(); });
  $('several').addEventListener('click', () => ask({
    title: 'Change the bans', ok: 'Change', danger: true, words: 'One shopper a line, or with commas or spaces between. Orders that there are stand.',
    fields: [{ name: 'add', label: 'Ban', lines: 6, read: uids }, { name: 'remove', label: 'Let buy again', lines: 3, read: uids }], send: change, done: look,
  }));
  if (query.get('uid')) one();
  return look;
}
