// What is on its way, and what could not be processed.

import { api, call, newKey, say, told } from './api.js';
import { chart } from './chart.js';
import { live } from './live.js';
import { age, copy, count, el, every, make, moment, rows, setHidden, setState, setText } from './page.js';

const SURVIVES_EVERY = 20000; // ms between two looks at the stores' settings, which the backend reads each minute

export function queue(alive) {
  const { root, $ } = copy('queue-view');
  el('main').replaceChildren(root);
  const add = chart($('chart'), $('chart-words'), ['queued']);
  const draw = (q) => {
    setText($('depth'), count(q.depth));
    setText($('oldest'), q.depth ? age(q.oldest_age_ms) : '–');
    setText($('pending'), count(q.pending));
    setText($('ready'), count(q.ready));
    setText($('unacked'), q.unacked < 0 ? 'not known' : count(q.unacked));
    setText($('intents'), count(q.intents));
    setText($('consumers'), q.queues.length ? count(q.consumers) : '–');
    setText($('dead'), count(q.dead_letters));
    add({ queued: q.depth });
    setHidden($('broker-error'), !q.broker_error);
    setText($('broker-error'), 'The broker does not say how its queues are: ' + q.broker_error);
    rows($('outboxes'), q.outboxes, (o) => o.sale_id, (o) => [[o.sale_id, 'n'], [count(o.depth), 'n'], [o.depth ? age(o.oldest_age_ms) : '–', 'n'], [count(o.pending), 'n'],
      [o.consumers.map((c) => c.name + (c.pending ? ': ' + count(c.pending) + ' for ' + age(c.held_ms) : ': idle')).join('; ') || '–', 'text']]);
    setHidden($('none'), q.outboxes.length > 0);
    setHidden($('broker'), q.queues.length === 0);
    rows($('queues'), q.queues, (b) => b.name, (b) => [make('code', b.name), [count(b.depth), 'n'], [count(b.ready), 'n'], [b.unacked < 0 ? '–' : count(b.unacked), 'n'], [count(b.consumers), 'n']]);
  };
  const survives = async () => {
    const { promise } = (await call('GET', '/-/ready', { timeout: 4000 })).data;
    if (!alive() || !promise) return;
    setHidden($('promise'), false);
    setText($('survives'), 'With accept.after ' + promise.accept_after + ': ' + promise.survives + '. The settings are read each minute.');
    rows($('settings'), promise.settings, (s) => [s.store, s.where, s.setting].join(), (s) => [[s.store + ' ' + s.where, 'text'], make('code', s.setting), s.value, [s.advice || '–', 'text']]);
  };
  const look = async () => {
    const res = await api('GET', '/queue');
    if (!alive() || !told(res)) return;
    draw(res.data);
    await survives();
  };
  look.begin = () => add.from(live.history.filter((p) => p.depth >= 0).map((p) => ({ at: Date.parse(p.at), queued: p.depth })));
  look.live = () => {
    told({ ok: live.last.queue !== null, status: 503, data: { detail: live.last.errors.join('; ') + '.' } });
    if (live.last.queue) draw(live.last.queue);
  };
  every(SURVIVES_EVERY, alive, async () => { if (live.on) await survives(); });
  return look;
}

const AT_ONCE = 20; // dead letters of one request, so that there is progress to be seen

export function letters(alive) {
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
  const bulk = async () => {
    const text = $('sale').value.trim();
    if (text && !/^[1-9]\d{0,15}$/.test(text)) { setText($('bulk-words'), 'A sale is named by its number.'); return; }
    $('bulk').disabled = true;
    let done = 0, words = '';
    while (!words && alive()) {
      const res = await api('POST', '/dead-letters/replay', { key: newKey(), body: { ...(text && { sale_id: Number(text) }), limit: AT_ONCE } });
      if (!res.ok) { words = 'Stopped after ' + count(done) + ': ' + say(res); break; }
      const { replayed, stopped, left } = res.data;
      done += replayed.length;
      if (stopped) words = count(done) + ' replayed. Stopped at letter ' + stopped.id + ', ' + stopped.result + ': ' + stopped.detail + ' ' + count(left) + ' are open. Replay that letter alone to pass it.';
      else if (left === 0 || replayed.length === 0) words = count(done) + ' replayed, ' + (left ? count(left) + ' are' : 'none is') + ' open.';
      else setText($('bulk-words'), count(done) + ' replayed, ' + count(left) + ' to do…');
    }
    if (!alive()) return;
    $('bulk').disabled = false;
    setText($('bulk-words'), words);
    page('');
  };
  $('bulk-form').addEventListener('submit', (event) => { event.preventDefault(); bulk(); });
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
}
