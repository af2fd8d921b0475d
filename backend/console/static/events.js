// What the shop's endpoints are told, and a way to tell them again.

import { api, newKey, say, told } from './api.js';
import { copy, count, el, make, moment, rows, setHidden, setState, setText } from './page.js';

export function events(alive, query) {
  const { root, $ } = copy('events-view');
  el('main').replaceChildren(root);
  for (const name of ['state', 'endpoint']) $(name).value = query.get(name) || '';
  let found = [], next = '';
  const shades = { waiting: 'warn', delivered: 'good', failed: 'bad' };
  const row = (e) => {
    const state = make('span');
    setState(state, shades[e.state], e.state);
    const again = make('button', 'Replay', 'quiet');
    again.type = 'button';
    again.dataset.needs = 'operator';
    again.dataset.event = e.id; // so that a row's button is its own
    again.setAttribute('aria-label', 'Replay ' + e.type + ', event ' + e.id);
    again.addEventListener('click', async () => {
      again.disabled = true;
      const res = await api('POST', '/events/' + e.id + '/replay', { key: newKey() });
      again.disabled = false;
      setText($('error'), res.ok ? '' : say(res));
      if (res.ok) { found = found.map((f) => (f.id === e.id ? res.data : f)); draw(); }
    });
    return [moment(e.created_at), e.endpoint, make('code', e.type), e.order_id ? make('code', e.order_id) : 'sale ' + e.sale_id, state, [count(e.attempts), 'n'], [e.last_error || '–', 'text'],
      moment(e.next_at) || '–', again];
  };
  const draw = () => {
    setHidden($('more'), !next);
    setHidden($('empty'), found.length > 0);
    rows($('rows'), found, (e) => e.id, row);
  };
  const page = async (cursor) => {
    const wanted = new URLSearchParams({ limit: '50' });
    for (const name of ['state', 'endpoint']) if ($(name).value) wanted.set(name, $(name).value);
    if (cursor) wanted.set('cursor', cursor);
    const res = await api('GET', '/events?' + wanted);
    if (!alive() || !told(res)) return;
    found = cursor ? [...found, ...res.data.events] : res.data.events;
    next = res.data.next;
    draw();
  };
  const show = () => {
    const wanted = new URLSearchParams();
    for (const name of ['state', 'endpoint']) if ($(name).value) wanted.set(name, $(name).value);
    history.replaceState(null, '', '#/events' + (wanted.size ? '?' + wanted : ''));
    page('');
  };
  $('state').addEventListener('change', show);
  $('form').addEventListener('submit', (event) => { event.preventDefault(); show(); });
  $('more').addEventListener('click', () => page(next));
  page('');
  return null;
}
