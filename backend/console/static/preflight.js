// The preflight's panel of a sale: go or no-go, and each check with what to do.

import { api, say } from './api.js';
import { make, moment, setState, setText } from './page.js';

// preflight makes the button of the panel ask path. What is accepted stays so until the view is left.
export function preflight($, alive, path) {
  const accepted = new Set();
  const line = (c) => {
    const item = make('li', undefined, c.ok ? 'yes' : c.accepted ? 'known' : 'no');
    item.append(make('span', c.ok ? '✓ ' : c.accepted ? '! ' : '✗ ', 'mark'), make('strong', c.name.replaceAll('_', ' ')), ': ' + c.value + (c.ok ? '' : '. Wanted: ' + c.want + '. '));
    item.firstChild.setAttribute('role', 'img');
    item.firstChild.setAttribute('aria-label', c.ok ? 'as wanted' : c.accepted ? 'accepted' : 'not as wanted');
    if (c.ok) return item;
    item.append(make('em', c.do));
    const button = make('button', c.accepted ? 'Do not accept' : 'Accept', 'quiet');
    button.type = 'button';
    button.setAttribute('aria-label', button.textContent + ' ' + c.name.replaceAll('_', ' '));
    button.addEventListener('click', () => {
      button.disabled = true; // the answer brings another
      if (!accepted.delete(c.name)) accepted.add(c.name);
      look();
    });
    item.append(' ', button);
    return item;
  };
  const look = async () => {
    $('preflight').disabled = true;
    const res = await api('GET', path + (accepted.size ? '?accept=' + encodeURIComponent([...accepted].join()) : ''));
    if (!alive()) return;
    $('preflight').disabled = false;
    setState($('go'), res.ok && res.data.go ? 'good' : 'bad', !res.ok ? '' : res.data.go ? 'GO' : 'NO-GO');
    setText($('preflight-words'), res.ok ? moment(res.data.checked_at) + ': ' + res.data.checks.filter((c) => c.ok).length + ' of ' + res.data.checks.length + ' checks are as wanted.' : say(res));
    if (res.ok) $('checks').replaceChildren(...res.data.checks.toSorted((a, b) => a.ok - b.ok).map(line));
  };
  $('preflight').addEventListener('click', look);
}
