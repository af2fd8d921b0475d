// The auditor's panel.

import { api, say } from './api.js';
import { make, moment, setState, setText } from './page.js';

// audits makes the button of an audit panel ask path. It returns what shows an answer; words(a) are what is said of its numbers.
export function audits($, alive, path, words) {
  const show = (a) => {
    setState($('balanced'), a.balanced ? 'good' : 'bad', a.balanced ? 'balanced' : 'not balanced');
    setText($('audit-words'), moment(a.checked_at) + ': ' + words(a));
    $('findings').replaceChildren(...a.findings.map((f) => {
      const item = make('li');
      item.append(make('strong', f.equation + ': '), f.detail + ' ', make('em', f.fix));
      return item;
    }));
  };
  $('audit').addEventListener('click', async () => {
    $('audit').disabled = true;
    const res = await api('GET', path);
    if (!alive()) return;
    $('audit').disabled = false;
    if (res.ok) show(res.data); else setText($('audit-words'), say(res));
  });
  return show;
}
