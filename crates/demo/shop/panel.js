// Behind the counter: what the backend, the API, the books and Kafka know of a payment, asked for again and again.

import { ask, element, formatClock, formatMoney } from './page.js';

/** How often the facts are asked for while something happens, and once nothing has for a while. */
const TURN_MS = 1_000;
const QUIET_TURN_MS = 10_000;
const QUIET_AFTER_MS = 180_000;

/** Where the subject is kept, so that a reload shows the same payment. */
const SUBJECT = 'foolscap.panel';
const DOUBLE_TAP = 'foolscap.double-tap';

const SWITCHES = [
  ['lost_reply', 'Lose the reply', 'The next answer is cut off on its way'],
  ['slow_network', 'Slow network', 'Two seconds each way'],
  ['double_tap', 'Double tap', 'Two requests leave at once'],
  ['stopped_api', 'Stop the API', 'Its port refuses connections'],
  ['stopped_kafka', 'Stop Kafka', 'Its process ends; events wait'],
];

export class Panel {
  #subject = read(sessionStorage.getItem(SUBJECT)) ?? {};
  #switches = new Map();
  #shown = '';
  #timer;
  #active_at = Date.now();
  #asking = 0;

  constructor() {
    const list = document.getElementById('switches');
    for (const [name, label, what] of SWITCHES) {
      const [called, told] = [`switch-${name}`, `switch-${name}-what`];
      const button = element(
        'button',
        { type: 'button', class: 'switch', role: 'switch', 'aria-checked': 'false', 'aria-labelledby': called, 'aria-describedby': told },
        element('span', { class: 'name', id: called, text: label }),
        element('span', { class: 'what', id: told, text: what }),
        element('span', { class: 'track', 'aria-hidden': 'true' }),
      );
      button.addEventListener('click', () => this.#turn(name));
      this.#switches.set(name, { button, what });
      list.append(element('li', {}, button));
    }
    this.#showSwitch('double_tap', { on: this.doubleTap() });
    for (const event of ['pointerdown', 'keydown']) addEventListener(event, () => this.#wake(), { passive: true });
    document.addEventListener('visibilitychange', () => this.#wake());
    this.refresh();
  }

  /** Whether each payment is to be sent twice at once. */
  doubleTap() {
    return sessionStorage.getItem(DOUBLE_TAP) === 'on';
  }

  /** Shows a payment: `{key, order}`, of which one is enough. */
  watch(subject) {
    this.#subject = subject;
    sessionStorage.setItem(SUBJECT, JSON.stringify(subject));
    this.refresh();
  }

  /** The payment that is shown. */
  subject() {
    return this.#subject;
  }

  /** Asks for the facts now, and then again in turns while the page can be seen. */
  async refresh() {
    clearTimeout(this.#timer);
    this.#asking += 1;
    const asked = this.#asking;
    const { key = null, order = null } = this.#subject;
    try {
      const facts = await ask('/panel', { key, order });
      // An answer to an earlier question would show the past.
      if (asked === this.#asking) this.#show(facts);
    } catch {
      if (asked === this.#asking) this.#showSilence();
    }
    if (asked !== this.#asking || document.hidden) return;
    const quiet = Date.now() - this.#active_at > QUIET_AFTER_MS;
    this.#timer = setTimeout(() => this.refresh(), quiet ? QUIET_TURN_MS : TURN_MS);
  }

  #wake() {
    const quiet = Date.now() - this.#active_at > QUIET_AFTER_MS;
    this.#active_at = Date.now();
    if (quiet || !document.hidden) this.#later();
  }

  /** Goes on asking where that has been given up. */
  #later() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), TURN_MS / 4);
  }

  async #turn(name) {
    const { button } = this.#switches.get(name);
    if (button.getAttribute('aria-disabled') === 'true' || button.getAttribute('aria-busy') === 'true') return;
    const on = button.getAttribute('aria-checked') !== 'true';
    if (name === 'double_tap') {
      sessionStorage.setItem(DOUBLE_TAP, on ? 'on' : 'off');
      this.#showSwitch(name, { on });
      return;
    }
    this.#showSwitch(name, { on, turning: true });
    const fault = document.getElementById('switch-fault');
    try {
      await ask('/panel/switches', { switch: name, on });
      fault.textContent = '';
    } catch {
      fault.textContent = 'The switch could not be turned. Try again.';
    }
    this.refresh();
  }

  #showSwitch(name, { on, turning = false, unusable = null }) {
    const { button, what } = this.#switches.get(name);
    button.setAttribute('aria-checked', String(on));
    button.setAttribute('aria-busy', String(turning));
    button.setAttribute('aria-disabled', String(unusable !== null));
    const text = unusable ?? what;
    const line = button.querySelector('.what');
    if (line.textContent !== text) line.textContent = text;
  }

  #showSilence() {
    document.getElementById('verdict').textContent = 'The shop itself does not answer.';
  }

  #show(facts) {
    const { fault, ...switches } = facts.switches;
    for (const [name, state] of Object.entries(switches)) this.#showSwitch(name, state);
    if (fault) document.getElementById('switch-fault').textContent = fault;

    // What is unchanged is left alone, so that text can be selected and read out in peace.
    const shown = JSON.stringify([this.#subject, { ...facts, switches: null }]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const { key, order } = this.#subject;
    const paying = Boolean(key || order);
    tally('attempts', facts.attempts.length);
    tally('transfers', facts.transfers.length);
    tally('events', facts.kafka.events.length);
    const verdict = document.getElementById('verdict');
    const text = paying ? judge(facts) : 'Nothing has been paid yet.';
    if (verdict.textContent !== text) verdict.textContent = text;
    const sections = paying ? [attempts(facts, key), record(facts, key), transfer(facts), event(facts)] : [balances(facts)];
    document.getElementById('facts').replaceChildren(...sections.filter(Boolean));
  }
}

function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function tally(name, count) {
  const figure = document.getElementById(`tally-${name}`);
  figure.textContent = String(count);
  figure.parentElement.classList.toggle('done', count === 1);
  figure.parentElement.classList.toggle('wrong', count > 1);
}

/** The whole in a sentence. */
function judge({ attempts, transfers, kafka, api_answers: answers, outbox }) {
  const sent = attempts.length;
  if (!answers) return 'The API is stopped. The page keeps the key and goes on asking.';
  if (transfers.length > 1) return 'The money has moved more than once. This must not happen.';
  if (transfers.length === 0) {
    const settled = attempts.some(({ reply }) => reply?.status === 422);
    if (settled) return 'Declined, and so recorded: no money has moved.';
    return sent ? 'On its way. Nothing has moved yet.' : '';
  }
  const once = sent > 1 ? `Sent ${sent} times, moved once` : 'Moved once';
  if (kafka.events.length > 1) return `${once}, but told more than once. This must not happen.`;
  if (kafka.events.length === 1) return `${once}, told once.`;
  return outbox?.length ? `${once}. Its event waits in the outbox.` : `${once}.`;
}

/** A section of the panel: `done` is true, false where something is wrong, and null where it is not known yet. */
function fact(title, done, ...children) {
  const state = done === null ? 'fact' : done ? 'fact done' : 'fact wrong';
  return element('section', { class: state }, element('h3', { text: title }), ...children);
}

function attempts({ attempts }, key) {
  const list = attempts.map(({ number, arrived_at_ms: at, reply, unanswered, fate }) =>
    element(
      'li',
      {},
      element('span', { class: 'number', text: String(number) }),
      element('span', {}, answer(reply, unanswered)),
      element('span', { class: 'when', text: formatClock(at) }),
      element('span', { class: fate === 'lost' || fate === 'abandoned' ? 'fate lost' : 'fate', text: unanswered ? 'the page is told to ask again' : FATES[fate] }),
    ),
  );
  const same = key && element('p', {}, 'Every attempt carries the key that the page made: ', element('code', { class: 'key', text: key }));
  const none = attempts.length === 0 && soft('None has arrived since the shop was started.');
  return fact('Attempts', attempts.length ? true : null, same, none, element('ol', { class: 'attempts' }, list));
}

const FATES = {
  open: 'under way',
  delivered: 'answer delivered',
  lost: 'answer lost on the way back',
  abandoned: 'the page had gone before the answer',
};

function answer(reply, unanswered) {
  if (unanswered) return element('span', { class: 'mark bad', text: 'no answer from the API' });
  if (!reply) return element('span', { class: 'mark', text: 'sent to the API' });
  const { status, replayed } = reply;
  const kind = replayed ? 'replayed' : status < 300 || status === 422 ? 'first answer' : 'not settled';
  const tone = status < 300 ? 'good' : status === 422 ? 'bad' : 'wait';
  return element('span', { class: `mark ${tone}`, text: `${status} ${kind}` });
}

function record({ record, api_answers: answers }, key) {
  if (!key || !answers || !record) return null;
  const { state, attempts, last_attempt_at: last, original } = record;
  if (state === 'unused') return fact('No idempotency record', null, soft('Nothing has run under this key.'));
  const rows = [
    ['State', state],
    ['First answer', original && `${original.status}, kept at ${formatClock(original.completed_at)}`],
    ['Asked for', attempts > 1 ? `${attempts} times, last at ${formatClock(last)}` : 'once'],
  ];
  const pairs = rows.filter(([, value]) => value).flatMap(([name, value]) => [element('dt', { text: name }), element('dd', { text: value })]);
  return fact('One idempotency record', true, element('dl', { class: 'pairs' }, pairs));
}

function transfer(facts) {
  const { transfers, api_answers: answers } = facts;
  if (!answers) return fact('Transfer', null, soft('The API does not answer, so nobody can tell.'));
  if (!transfers.length) return fact('No transfer', null, books(facts));
  const ids = transfers.map(({ id }) => element('p', {}, element('code', { class: 'key', text: id })));
  const title = transfers.length === 1 ? 'One transfer, two postings' : `${transfers.length} transfers`;
  return fact(title, transfers.length === 1, ...ids, books(facts));
}

function balances(facts) {
  return facts.accounts.length ? fact('Balances', true, books(facts)) : null;
}

/** Each account with the postings of the payment and its balance. */
function books({ accounts, postings }) {
  const posted = (id) => postings.filter((posting) => posting.account_id === id).map(({ amount }) => signed(amount)).join(' ');
  const columns = [['Posting', ({ id }) => posted(id)], ['Balance', ({ balance }) => formatMoney(balance.available)]];
  if (!postings.length) columns.shift();
  const head = ['Account', ...columns.map(([title]) => title)].map((text) => element('th', { scope: 'col', text }));
  const rows = accounts.map((account) =>
    element(
      'tr',
      {},
      element('th', { scope: 'row', text: account.name }),
      columns.map(([, read]) => element('td', { class: 'money', text: read(account) })),
    ),
  );
  return element('table', { class: 'books' }, element('thead', {}, element('tr', {}, head)), element('tbody', {}, rows));
}

function event({ outbox, kafka, transfers }) {
  if (!transfers.length) return null;
  const waiting = outbox?.map(({ position }) => `Outbox: position ${position}, committed with the transfer`);
  const published = kafka.events.map(({ partition, offset }) => `Kafka: partition ${partition}, offset ${offset}, read committed`);
  const lines = [...(waiting ?? ['Outbox: the database does not answer']), ...published];
  if (!published.length) lines.push(`Kafka: ${kafka.fault ?? 'not there yet'}`);
  const ids = [...new Set(kafka.events.map(({ event_id: id }) => id))];
  const titles = { 0: 'The event waits', 1: 'One event' };
  return fact(
    titles[published.length] ?? `${published.length} events`,
    published.length ? published.length === 1 : null,
    ids.map((id) => element('p', {}, element('code', { class: 'key', text: id }))),
    lines.map((line) => element('p', { text: line })),
  );
}

const signed = (cents) => (cents > 0 ? '+' : '') + formatMoney(cents);
const soft = (text) => element('p', { class: 'soft', text });
