// What every part of the page is made with.

const SVG = 'http://www.w3.org/2000/svg';

/**
 * An element with its attributes and children. `on…` is a listener, `text` the text; what is null or false is left out.
 * Nothing is ever parsed as HTML, so that no name of a product or an order can become part of the page.
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === 'text') made.textContent = value;
    else if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** The drawing of a product, which says nothing that its name does not. */
export function picture(sku) {
  const drawing = document.createElementNS(SVG, 'svg');
  drawing.setAttribute('viewBox', '0 0 120 90');
  drawing.setAttribute('aria-hidden', 'true');
  const use = document.createElementNS(SVG, 'use');
  use.setAttribute('href', `#art-${sku}`);
  drawing.append(use);
  return drawing;
}

const euro = new Intl.NumberFormat('en-IE', { style: 'currency', currency: 'EUR' });
const dateAndTime = new Intl.DateTimeFormat('en-IE', { dateStyle: 'medium', timeStyle: 'short' });
const clock = new Intl.DateTimeFormat('en-IE', { timeStyle: 'medium', hourCycle: 'h23' });

/** Cents as euros. */
export const formatMoney = (cents) => euro.format(cents / 100).replace('-', '−');
/** A day and its minute. */
export const formatTime = (time) => dateAndTime.format(new Date(time));
/** A second of today. */
export const formatClock = (time) => clock.format(new Date(time));

/** Tells people who don't see the page what has changed on it. */
export function say(text) {
  document.getElementById('said').textContent = text;
}

/** Asks the shop's backend for JSON; throws where it has none to give. */
export async function ask(path, body) {
  const request = body && {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  };
  const response = await fetch(path, { ...request, signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
  if (!response.ok) throw new Error(`${path} answered ${response.status}`);
  return response.status === 202 ? undefined : response.json();
}

/** How long the backend may take to answer a question. */
const ANSWER_WITHIN_MS = 10_000;
