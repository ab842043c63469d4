// The shop: what is shown under which address, and how a basket is paid for.

import { Basket } from './basket.js';
import { ask, element, formatMoney, formatTime, picture, say } from './page.js';
import { Panel } from './panel.js';
import { Intents } from './retry.js';

/** How old an intent may be that is sent again without a person's word: nobody wants last week's basket to be paid for
 * because a page was opened. */
const RESUMED_WITHIN_MS = 3_600_000;

const basket = new Basket(localStorage);
const intents = new Intents({ storage: localStorage, report: (intent, step) => showStep(intent, step) });
const panel = new Panel();
const view = document.getElementById('view');

/** What is known of each payment of this visit, by its key: the last step, and the outcome. */
const steps = new Map();
const outcomes = new Map();
/** Orders that were paid for in this visit, by their number. */
const paid = new Map();
let products = [];

// ---- Paying

/** Pays for the basket as it is now. Pressed twice, it is one intent, and is sent once. */
function pay() {
  if (!basket.count()) return show();
  let intent;
  try {
    intent = intents.begin('/checkout', basket.request());
  } catch {
    // Without a kept key nothing is sent: after a reload nobody could tell whether the money has moved.
    problem('This browser does not let the page keep anything, so that it can’t pay safely. Allow storage for this site.');
    return undefined;
  }
  panel.watch({ key: intent.key });
  // The second of two taps that no page could hold back: another sender, and the same key, as it is the same intent.
  if (panel.doubleTap() && !intents.settling(intent)) new Intents({ storage: localStorage }).settle(intent);
  return settle(intent);
}

/** Sends a payment until its outcome is known, and shows what becomes of it. */
async function settle(intent) {
  if (intents.settling(intent)) return;
  outcomes.delete(intent.key);
  const running = intents.settle(intent);
  showPayments();
  const outcome = await running;
  steps.delete(intent.key);
  outcomes.set(intent.key, { ...outcome, body: intent.body });
  panel.refresh();
  const made = outcome.state === 'final' && outcome.answer.status === 201;
  const current = basket.request() === intent.body;
  // The basket first, then the key: a page that is closed in between asks again and hears the same answer.
  if (made && current) basket.empty();
  if (outcome.state !== 'open' && !aboutKey(outcome)) intents.forget(intent);
  if (made) receive(intent, parse(outcome.answer.body), { current, replayed: outcome.answer.replayed });
  else showPayments();
}

/** Whether an answer is about the key, such as that it is too old to be replayed: the payment may well have been made, so
 * that the key stays until a person has looked. */
function aboutKey({ answer }) {
  return Boolean(answer) && problemType(answer).includes('/idempotency-key-');
}

const problemType = (answer) => String(parse(answer.body)?.type ?? '');

/** The payment is made: the receipt is shown, or news of it where the person is elsewhere by now. */
function receive(intent, transfer, { current, replayed }) {
  const number = transfer.metadata.order;
  paid.set(number, { transfer, replayed, seen: false });
  if (panel.subject().key === intent.key) panel.watch({ key: intent.key, order: number });
  showCount();
  say(`Paid. Order ${number}.`);
  if (route().name === 'checkout' && current) location.hash = `#/receipt/${number}`;
  else {
    showPayments();
    if (route().name !== 'checkout') show();
  }
}

function showStep(intent, step) {
  steps.set(intent.key, step);
  showPayments();
  panel.refresh();
}

/** What to tell of a payment: a tone, a line, and more of it. */
function describe(intent) {
  const step = steps.get(intent.key);
  const outcome = outcomes.get(intent.key);
  if (intents.settling(intent)) {
    if (step?.step === 'offline') {
      return ['wait', 'You are offline.', 'The payment is kept, and goes on by itself when the network is back.'];
    }
    if (step?.step === 'waiting') {
      const why = step.answer ? 'The payment can’t be settled right now.' : 'No answer came.';
      return ['wait', why, 'Asking again in a moment. You can’t be charged twice.'];
    }
    return step?.attempt > 1
      ? ['wait', 'Asking again…', 'The same payment with the same key: you can’t be charged twice.']
      : ['', 'Paying…', 'You may reload, go back, or lose the network. This payment is kept.'];
  }
  if (outcome && aboutKey(outcome)) {
    return ['bad', 'This payment can’t be settled here any more.', 'It may have been made: look among your orders before you pay again.'];
  }
  if (outcome?.state === 'open' || (!outcome && intent.attempts > 0)) {
    return ['wait', 'We don’t know yet whether this payment was made.', 'Asking again is safe: it is made once at most.'];
  }
  if (outcome?.answer) {
    const enough = !problemType(outcome.answer).endsWith('/insufficient-funds');
    return ['bad', enough ? 'The payment was declined.' : 'Your account does not hold enough.', 'No money has moved.'];
  }
  return ['wait', 'This payment has not been sent yet.', 'It is kept until you finish it.'];
}

function notice(intent, ...buttons) {
  const [tone, line, detail] = describe(intent);
  const busy = intents.settling(intent) && element('span', { class: 'spinner', 'aria-hidden': 'true' });
  return element(
    'div',
    { class: `notice ${tone}` },
    busy,
    element('p', {}, element('strong', { text: line }), ' ', element('span', { class: 'detail', text: detail })),
    ...buttons,
  );
}

/** Shows the payments that are under way: on the checkout that of the basket, above every page all others. */
function showPayments() {
  const here = route().name === 'checkout' ? basket.request() : null;
  const pending = intents.pending();
  const others = pending.filter(({ body }) => body !== here).map((intent) => {
    const again = element('button', { type: 'button', class: 'button', text: 'Ask again', onclick: () => settle(intent) });
    const forget = element('button', { type: 'button', class: 'button plain', text: 'Forget it', onclick: () => forgetIntent(intent) });
    const buttons = intents.settling(intent) ? [] : [again, forget];
    const shown = notice(intent, ...buttons);
    shown.querySelector('p').prepend(`${formatMoney(total(linesOf(intent)))} for ${summary(linesOf(intent))}. `);
    return shown;
  });
  const news = [...paid].filter(([, { seen }]) => !seen).map(([number, { transfer }]) =>
    element(
      'div',
      { class: 'notice good' },
      element('p', {}, element('strong', { text: `Order ${number} is paid.` }), ` ${formatMoney(transfer.amount)} for ${transfer.description}.`),
      element('a', { class: 'button', href: `#/receipt/${number}`, text: 'Receipt' }),
    ),
  );
  document.getElementById('unsettled').replaceChildren(...others, ...news);

  const status = document.getElementById('payment');
  if (!status || here === null) return;
  const intent = pending.find(({ body }) => body === here) ?? lastFor(here);
  const shown = intent && notice(intent);
  // What is unchanged would be read out again.
  if (status.textContent !== (shown?.textContent ?? '')) status.replaceChildren(...(shown ? [shown] : []));
  const button = document.getElementById('pay');
  const busy = Boolean(intent && intents.settling(intent));
  const open = Boolean(intent && !busy && pending.includes(intent));
  button.textContent = busy ? 'Paying…' : open ? 'Ask again' : `Pay ${formatMoney(total(basket.lines()))}`;
  button.setAttribute('aria-disabled', String(busy));
}

/** The payment that was last tried for a basket and is settled, without money. */
function lastFor(body) {
  const [key, outcome] = [...outcomes].filter(([, { body: of }]) => of === body).at(-1) ?? [];
  return outcome && { key, body, attempts: 1 };
}

function forgetIntent(intent) {
  intents.forget(intent);
  say('Forgotten. If the payment was made, it is among your orders.');
  showPayments();
}

/** Goes on with what a reload, a crash or a lost network has left behind. */
function resume() {
  const pending = intents.pending();
  if (pending.length) panel.watch({ key: pending.at(-1).key });
  for (const intent of pending) {
    if (Date.now() - Date.parse(intent.begun_at) < RESUMED_WITHIN_MS) settle(intent);
  }
  showPayments();
}

// ---- What is shown

const route = () => {
  const [name = '', argument] = location.hash.replace(/^#\//, '').split('/');
  return { name, argument };
};

const product = (sku) => products.find((product) => product.sku === sku);
const total = (lines) => lines.reduce((sum, { sku, quantity, price }) => sum + quantity * (price ?? product(sku)?.price ?? 0), 0);
const summary = (lines) => lines.map(({ sku, quantity }) => `${quantity} × ${product(sku)?.name ?? sku}`).join(', ');
const linesOf = (intent) => JSON.parse(intent.body).items ?? [];

/** The lines of an order, which the transfer's metadata keeps as `quantity@price`. */
function linesPaid(transfer) {
  return Object.entries(transfer.metadata ?? {})
    .map(([sku, text]) => [sku, /^(\d+)@(\d+)$/.exec(text)])
    .filter(([, match]) => match)
    .map(([sku, [, quantity, price]]) => ({ sku, quantity: Number(quantity), price: Number(price) }))
    .sort((one, other) => products.indexOf(product(one.sku)) - products.indexOf(product(other.sku)));
}

const views = {
  '': ['Everything for a letter', shelf],
  basket: ['Your basket', basketView],
  checkout: ['Checkout', checkout],
  receipt: ['Receipt', receipt],
  orders: ['Your orders', orders],
};

/** Shows what the address names. A page that was gone to has the focus on its heading, so that it is read out. */
async function show({ moved = false } = {}) {
  const { name, argument } = route();
  const [title, make] = views[name] ?? views[''];
  document.title = `${title} · Foolscap`;
  for (const link of document.querySelectorAll('[data-route]')) {
    if (link.dataset.route === name) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  const heading = element('h1', { text: title, tabindex: '-1' });
  const content = await make(argument, heading);
  // Another page may have been gone to meanwhile.
  if (route().name !== name || route().argument !== argument) return;
  view.replaceChildren(...[heading, content].flat().filter(Boolean));
  showCount();
  showPayments();
  if (moved) {
    scrollTo(0, 0);
    heading.focus({ preventScroll: true });
  }
}

function showCount() {
  const badge = document.getElementById('basket-count');
  const count = basket.count();
  badge.hidden = count === 0;
  badge.textContent = String(count);
  badge.setAttribute('aria-label', `${count} in it`);
}

function shelf() {
  const cards = products.map(({ sku, name, detail, price }) =>
    element(
      'li',
      { class: 'product' },
      element('div', { class: 'picture' }, picture(sku)),
      element('h2', { text: name }),
      element('p', { class: 'detail', text: detail }),
      element(
        'div',
        { class: 'buy' },
        element('span', { class: 'money', text: formatMoney(price) }),
        element('button', { type: 'button', class: 'button', 'aria-label': `Add ${name} to the basket`, text: 'Add', onclick: () => add(sku, 1) }),
      ),
    ),
  );
  return [
    element('p', { class: 'lede', text: 'Paper, ink and a book to write it all down in. Sent once, whatever happens on the way.' }),
    element('ul', { class: 'shelf' }, cards),
  ];
}

function add(sku, pieces) {
  try {
    basket.add(sku, pieces);
  } catch {
    problem('This browser does not let the page keep a basket. Allow storage for this site.');
    return;
  }
  const line = basket.lines().find((line) => line.sku === sku);
  say(line ? `${product(sku).name}: ${line.quantity} in the basket.` : `${product(sku).name} is taken out.`);
  showCount();
  if (route().name !== 'basket') return;
  const focused = document.activeElement?.id;
  show().then(() => (document.getElementById(focused) ?? view.querySelector('h1')).focus());
}

const nothing = (text) => [element('p', { class: 'lede', text }), element('p', { class: 'actions' }, element('a', { class: 'button main', href: '#/', text: 'To the shop' }))];

function lineRow({ sku, quantity, price }, controls) {
  const { name, price: today } = product(sku) ?? { name: sku, price: 0 };
  return element(
    'li',
    {},
    element('div', { class: 'thumb' }, picture(sku)),
    element('div', {}, element('span', { class: 'name', text: controls ? name : `${quantity} × ${name}` }), controls),
    element('span', { class: 'money', text: formatMoney(quantity * (price ?? today)) }),
  );
}

const totalRow = (lines) => element('p', { class: 'total' }, element('span', { text: 'Total' }), element('span', { class: 'money', text: formatMoney(total(lines)) }));

function basketView() {
  const lines = basket.lines();
  if (!lines.length) return nothing('Nothing is in it yet.');
  const rows = lines.map((line) => {
    const { name } = product(line.sku) ?? { name: line.sku };
    const button = (id, text, label, pieces) =>
      element('button', { type: 'button', id: `${id}-${line.sku}`, text, 'aria-label': label, onclick: () => add(line.sku, pieces) });
    const controls = element(
      'div',
      { class: 'quantity', role: 'group', 'aria-label': `Quantity of ${name}` },
      button('less', '−', `One ${name} less`, -1),
      element('output', { text: String(line.quantity) }),
      button('more', '+', `One ${name} more`, 1),
    );
    return lineRow(line, controls);
  });
  return element(
    'div',
    { class: 'narrow' },
    element('ul', { class: 'lines' }, rows),
    totalRow(lines),
    element('p', { class: 'actions' }, element('a', { class: 'button main wide', href: '#/checkout', text: 'To the checkout' })),
  );
}

function checkout() {
  const lines = basket.lines();
  if (!lines.length) return nothing('Nothing is in your basket, so there is nothing to pay for.');
  return element(
    'div',
    { class: 'narrow' },
    element('ul', { class: 'lines' }, lines.map((line) => lineRow(line))),
    totalRow(lines),
    element('p', { class: 'soft small', text: 'Paid from your customer account with the shop. No card, no real money.' }),
    element('p', { class: 'actions' }, element('button', { type: 'button', class: 'button main wide', id: 'pay', onclick: pay })),
    element('div', { id: 'payment', role: 'status' }),
  );
}

async function receipt(number, heading) {
  const { transfer, replayed } = paid.get(number) ?? { transfer: await findOrder(number) };
  if (transfer === undefined) return nothing('The orders can’t be looked up right now. Reload to try again.');
  if (transfer === null) return nothing('There is no such order.');
  heading.textContent = 'Thank you';
  if (paid.has(number)) paid.get(number).seen = true;
  if (panel.subject().order !== number) panel.watch({ order: number });
  const lines = linesPaid(transfer);
  const answer = replayed && ['Answer', 'the first one, replayed'];
  const rows = [['Order', number], ['Paid', formatTime(transfer.created_at)], ['Transfer', transfer.id], answer].filter(Boolean);
  return element(
    'div',
    { class: 'narrow' },
    element('p', { class: 'lede', text: 'Your order is paid, once.' }),
    element(
      'section',
      { class: 'slip', 'aria-label': 'Receipt' },
      element('dl', { class: 'pairs' }, rows.flatMap(([name, value]) => [element('dt', { text: name }), element('dd', { text: value, class: name === 'Transfer' && 'mono' })])),
      element('ul', { class: 'lines' }, lines.map(({ sku, quantity, price }) => element('li', {}, element('span', { class: 'name', text: `${quantity} × ${product(sku)?.name ?? sku}` }), element('span', { class: 'money', text: formatMoney(quantity * price) })))),
      totalRow([{ quantity: 1, price: transfer.amount }]),
    ),
    element('p', { class: 'actions' }, element('a', { class: 'button', href: '#/', text: 'Back to the shop' }), element('a', { class: 'button', href: '#/orders', text: 'All orders' })),
  );
}

/** The transfer of an order; null if there is none, and undefined if nobody can tell. */
async function findOrder(number) {
  try {
    const { data } = await ask('/orders');
    return data.find((transfer) => transfer.metadata.order === number) ?? null;
  } catch {
    return undefined;
  }
}

async function orders() {
  let data;
  try {
    ({ data } = await ask('/orders'));
  } catch {
    return nothing('The orders can’t be looked up right now. Reload to try again.');
  }
  if (!data.length) return nothing('You have not ordered anything yet.');
  const rows = data.map(({ metadata, amount, created_at: at, description }) =>
    element(
      'li',
      {},
      element(
        'a',
        { href: `#/receipt/${metadata.order}` },
        element('span', { class: 'number', text: metadata.order }),
        element('span', { class: 'money', text: formatMoney(amount) }),
        element('span', { class: 'what', text: `${formatTime(at)} · ${description}` }),
      ),
    ),
  );
  return element('div', { class: 'narrow' }, element('ol', { class: 'orders' }, rows));
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function problem(text) {
  const status = document.getElementById('payment') ?? document.getElementById('unsettled');
  status.replaceChildren(element('div', { class: 'notice bad', role: 'alert' }, element('p', { text })));
}

// ---- Start

addEventListener('hashchange', () => {
  // Other fragments are places on the page.
  if (location.hash === '' || location.hash.startsWith('#/')) show({ moved: true });
});
// Another tab has changed the basket, or settled a payment.
addEventListener('storage', ({ key }) => (key === null || Basket.keeps(key) ? show() : showPayments()));
addEventListener('online', resume);

try {
  products = await ask('/products');
} catch {
  problem('The shop does not answer. Reload to try again.');
}
await show();
resume();
