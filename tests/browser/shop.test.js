// The shop in a real browser. Each test ends with what the API and Kafka say, whatever the page says.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdir, mkdtemp, readFile, readdir, readlink, rm } from 'node:fs/promises';
import { createServer, get } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, beforeEach, test } from 'node:test';

import { chromium } from 'playwright-core';

import { Demo, PATIENCE_MS, ROOT, until } from './demo.js';

const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';
/** Pictures of the run, for people. */
const SCREENSHOTS = join(ROOT, 'target/screenshots');
const DESK = { width: 1360, height: 900 };
/** The narrowest page that must work: 1280 pixels at 400 % (WCAG 2.2, 1.4.10). */
const PHONE = { width: 320, height: 640 };
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

let demo;
let browser;
let stranger;
let visit;

const launch = (...argv) => ({ executablePath: CHROMIUM, args: ['--no-sandbox', ...argv] });

before(async () => {
  await mkdir(SCREENSHOTS, { recursive: true });
  stranger = await serveStranger();
  demo = await Demo.start({ CORS_ORIGINS: stranger.origin });
  browser = await chromium.launch(launch());
});

after(async () => {
  await browser?.close();
  stranger?.close();
  await demo?.stop();
});

beforeEach(async () => {
  visit = await Visit.begin();
});

afterEach(async () => {
  await repair();
  await visit.end();
});

/** Turns every switch off, whatever the test has left behind. */
async function repair() {
  const post = (path, body) =>
    fetch(`${demo.ready.shop}${path}`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
  const switches = async () => Object.entries((await (await post('/panel', {})).json()).switches).filter(([, state]) => state?.on !== undefined);
  for (const [name, { on }] of await switches()) if (on) await post('/panel/switches', { switch: name, on: false });
  await until('the switches to be off', async () => (await switches()).every(([, { on, turning }]) => !on && !turning));
}

/** A person with a browser. */
class Visit {
  /** The attempts to pay that left the page. */
  attempts = [];
  faults = [];
  hosts = new Set();

  static async begin({ shop = demo.ready.shop, from = browser, ...options } = {}) {
    const visit = new Visit();
    visit.shop = shop;
    visit.context = await from.newContext({ viewport: DESK, ...options });
    visit.listen();
    visit.page = await visit.open();
    return visit;
  }

  listen() {
    this.context.setDefaultTimeout(PATIENCE_MS);
    this.context.on('request', (request) => {
      this.hosts.add(new URL(request.url()).host);
      if (request.method() === 'POST' && request.url() === `${this.shop}/checkout`) {
        this.attempts.push({ key: request.headers()['idempotency-key'], body: request.postData() });
      }
    });
    this.context.on('weberror', (error) => this.faults.push(String(error.error())));
    // A policy that forbids what the page does is told on the console only.
    this.context.on('console', (message) => /Security Policy|Trusted/.test(message.text()) && this.faults.push(message.text()));
  }

  async open(path = '') {
    const page = await this.context.newPage();
    await page.goto(`${this.shop}/${path}`);
    await page.getByRole('heading', { level: 1 }).waitFor();
    return page;
  }

  async end() {
    await this.context.close();
    assert.deepEqual(this.faults, []);
    assert.deepEqual([...this.hosts], [new URL(this.shop).host], 'nothing is fetched from anyone else');
  }

  /** Puts things into the basket and goes to the checkout. */
  async fill(names = ['Ink'], page = this.page) {
    const whole = { Ink: 'Iron gall ink', Paper: 'Letter paper', Book: 'Ledger book', Pen: 'Fountain pen' };
    await page.getByRole('link', { name: 'Shop', exact: true }).click();
    for (const name of names) await page.getByRole('button', { name: `Add ${whole[name]} to the basket` }).click();
    await this.toCheckout(page);
  }

  async toCheckout(page = this.page) {
    await page.getByRole('link', { name: /^Basket/ }).click();
    await page.getByRole('link', { name: 'To the checkout' }).click();
    await page.getByRole('heading', { name: 'Checkout' }).waitFor();
  }

  /** Presses the button, whatever it says about itself. */
  pay(page = this.page) {
    return page.locator('#pay').click({ force: true });
  }

  /** Waits for the receipt, and returns the keys that were sent, each once. */
  async receipt(page = this.page) {
    await page.getByRole('heading', { name: 'Thank you' }).waitFor();
    return this.keys();
  }

  keys() {
    return [...new Set(this.attempts.map(({ key }) => key))];
  }

  /** Turns a switch, and waits until it has turned. */
  async turn(name, on, page = this.page) {
    const button = page.getByRole('switch', { name: new RegExp(name) });
    const state = async () => `${await button.getAttribute('aria-checked')} ${await button.getAttribute('aria-busy')}`;
    if ((await state()) !== `${on} false`) await button.click();
    await until(`${name} to be ${on ? 'on' : 'off'}`, async () => (await state()) === `${on} false`);
  }

  /** The intents that the browser keeps. */
  kept(page = this.page) {
    return page.evaluate(() =>
      Object.entries(localStorage)
        .filter(([name]) => name.startsWith('oncepost.intent.'))
        .map(([, text]) => JSON.parse(text)),
    );
  }

  /** Waits until the panel says so, and returns its figures. */
  async verdict(text, page = this.page) {
    await page.locator('#verdict', { hasText: text }).waitFor();
    const figure = async (name) => Number(await page.locator(`#tally-${name}`).textContent());
    return { attempts: await figure('attempts'), transfers: await figure('transfers'), events: await figure('events') };
  }

  async picture(name, options = {}) {
    await this.page.screenshot({ path: join(SCREENSHOTS, `${name}.png`), ...options });
  }
}

/** A site of its own whose page uses the module and calls the API itself. */
async function serveStranger() {
  const module = await readFile(join(ROOT, 'crates/demo/shop/retry.js'));
  const server = createServer((request, response) => {
    const script = request.url === '/retry.js';
    response.writeHead(200, { 'Content-Type': script ? 'text/javascript' : 'text/html' });
    response.end(script ? module : '<!doctype html><title>Another site</title>');
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { origin: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

// ---- One key for each intent, kept until a final answer

test('a double click is one intent, sent once', async () => {
  await visit.fill();
  await visit.page.locator('#pay').dblclick();
  const [key, ...others] = await visit.receipt();
  assert.deepEqual(others, []);
  assert.match(key, UUID);
  assert.equal(visit.attempts.length, 1);
  assert.deepEqual(await visit.kept(), []);
  const transfer = await demo.finish(key);
  assert.equal(transfer.amount, 1450);
});

test('the same basket bought again is a new intent', async () => {
  await visit.fill();
  await visit.pay();
  await visit.receipt();
  await visit.fill();
  await visit.pay();
  await until('the second receipt', async () => visit.attempts.length === 2 && (await visit.kept()).length === 0);
  const keys = visit.keys();
  assert.equal(keys.length, 2);
  for (const key of keys) await demo.finish(key);
});

test('a reload in the middle of the request goes on with the same key', async () => {
  await visit.turn('Slow network', true);
  await visit.fill();
  await visit.pay();
  await until('the request', () => visit.attempts.length === 1);
  const [intent] = await visit.kept();
  assert.equal(intent.key, visit.attempts[0].key);
  await visit.page.reload();
  const keys = await visit.receipt();
  assert.deepEqual(keys, [intent.key]);
  assert.ok(visit.attempts.length >= 2);
  assert.deepEqual(await visit.kept(), []);
  await demo.finish(intent.key);
});

test('a tab that crashes in the middle of the request is continued by the next one', async () => {
  await visit.turn('Slow network', true);
  await visit.fill();
  await visit.pay();
  await until('the request', () => visit.attempts.length === 1);
  const crashed = new Promise((resolve) => visit.page.once('crash', resolve));
  // The page's process ends before it could answer.
  visit.page.goto('chrome://crash').catch(() => {});
  await crashed;
  await visit.page.close();
  visit.page = await visit.open('#/checkout');
  const keys = await visit.receipt();
  assert.equal(keys.length, 1);
  await demo.finish(keys[0]);
});

test('a browser that is killed goes on with the same key when it is started again', async (context) => {
  const folder = await mkdtemp(join(tmpdir(), 'oncepost-browser-'));
  context.after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  const start = async () => {
    const again = new Visit();
    again.shop = demo.ready.shop;
    again.context = await chromium.launchPersistentContext(folder, { ...launch(), viewport: DESK, handleSIGINT: false });
    again.listen();
    again.page = await again.open('#/checkout');
    return again;
  };
  const first = await start();
  await first.fill();
  await first.turn('Stop the API', true);
  await first.pay();
  await until('an attempt', () => first.attempts.length >= 1);
  const [{ key }] = await first.kept();
  // The browser writes what a page keeps to the disk a few seconds later.
  const storage = join(folder, 'Default/Local Storage/leveldb');
  await until('the key on the disk', async () => {
    const files = await Promise.all((await readdir(storage)).map((name) => readFile(join(storage, name)).catch(() => '')));
    return files.some((bytes) => bytes.includes(key));
  });
  const gone = new Promise((resolve) => first.context.once('close', resolve));
  await kill(folder);
  await gone;

  const second = await start();
  assert.deepEqual((await second.kept()).map((intent) => intent.key), [key]);
  await second.turn('Stop the API', false);
  assert.deepEqual(await second.receipt(), [key]);
  await second.context.close();
  await demo.finish(key);
});

/** SIGKILL to the browser that runs in a folder: its lock names its pid. */
async function kill(folder) {
  const pid = Number((await readlink(join(folder, 'SingletonLock'))).split('-').at(-1));
  process.kill(pid, 'SIGKILL');
}

test('without a network nothing is sent, and the payment goes on when it is back', async () => {
  await visit.fill();
  await visit.context.setOffline(true);
  await visit.pay();
  await visit.page.getByText('You are offline.').waitFor();
  assert.equal(visit.attempts.length, 0);
  const [intent] = await visit.kept();
  await visit.context.setOffline(false);
  assert.deepEqual(await visit.receipt(), [intent.key]);
  await demo.finish(intent.key);
});

test('a network that goes away in the middle of the request changes nothing', async () => {
  // The answer is on its way when the network goes, and never arrives.
  await visit.turn('Slow network', true);
  await visit.turn('Lose the reply', true);
  await visit.fill();
  await visit.pay();
  await until('the request', () => visit.attempts.length === 1);
  await visit.context.setOffline(true);
  await visit.page.getByText('You are offline.').waitFor();
  await visit.context.setOffline(false);
  const keys = await visit.receipt();
  assert.equal(keys.length, 1);
  assert.ok(visit.attempts.length >= 2);
  await demo.finish(keys[0]);
});

test('Back and then Pay is the same intent; after the receipt there is nothing to pay', async () => {
  await visit.turn('Slow network', true);
  await visit.fill();
  await visit.pay();
  await until('the request', () => visit.attempts.length === 1);
  await visit.page.goBack();
  await visit.page.getByRole('heading', { name: 'Your basket' }).waitFor();
  // What is under way is told on every page.
  await visit.page.locator('#unsettled').getByText('for 1 × Iron gall ink').waitFor();
  await visit.page.getByRole('link', { name: 'To the checkout' }).click();
  await visit.pay();
  const keys = await visit.receipt();
  assert.equal(keys.length, 1);
  await visit.page.goBack();
  await visit.page.getByText('there is nothing to pay for').waitFor();
  assert.equal(await visit.page.locator('#pay').count(), 0);
  await demo.finish(keys[0]);
});

test('a changed basket is a new intent, and the earlier one is settled as well', async () => {
  await visit.fill(['Ink']);
  await visit.turn('Stop the API', true);
  await visit.pay();
  await until('an attempt', () => visit.attempts.length >= 1);
  const [first] = await visit.kept();
  await visit.fill(['Paper']);
  await visit.page.locator('#unsettled').getByText('for 1 × Iron gall ink.').waitFor();
  await visit.pay();
  const both = await until('two intents', async () => {
    const kept = await visit.kept();
    return kept.length === 2 && kept;
  });
  const second = both.find(({ key }) => key !== first.key);
  assert.notEqual(second.body, first.body);
  await visit.turn('Stop the API', false);
  await until('both to be settled', async () => (await visit.kept()).length === 0);
  assert.deepEqual(visit.keys().sort(), [first.key, second.key].sort());
  assert.equal((await demo.finish(first.key)).amount, 1450);
  assert.equal((await demo.finish(second.key)).amount, 2650);
});

test('a page that is closed between the answer and its own record of it pays no second time', async () => {
  await visit.fill();
  await visit.pay();
  const [key] = await visit.receipt();
  // What such a page leaves behind: the intent, and a basket that is still full.
  const [{ body }] = visit.attempts;
  await visit.page.evaluate(
    ({ key, body }) => {
      const intent = { key, path: '/checkout', body, begun_at: new Date().toISOString(), attempts: 1 };
      localStorage.setItem(`oncepost.intent.${key}`, JSON.stringify(intent));
      localStorage.setItem('foolscap.basket', JSON.stringify(JSON.parse(body).items));
    },
    { key, body },
  );
  await visit.page.goto(`${visit.shop}/#/checkout`);
  await visit.page.reload();
  assert.deepEqual(await visit.receipt(), [key]);
  await visit.page.getByText('the first one, replayed').waitFor();
  assert.equal(await visit.page.locator('#basket-count').isHidden(), true);
  assert.deepEqual(await visit.kept(), []);
  await demo.finish(key);
});

test('a key that belongs to another request is kept until a person has looked', async () => {
  await visit.fill();
  await visit.pay();
  const [key] = await visit.receipt();
  const intent = { key, path: '/checkout', body: '{"items":[{"sku":"ink","quantity":2}]}', begun_at: new Date().toISOString(), attempts: 1 };
  await visit.page.evaluate((kept) => localStorage.setItem(`oncepost.intent.${kept.key}`, JSON.stringify(kept)), intent);
  await visit.page.reload();
  await visit.page.getByText('look among your orders before you pay again').waitFor();
  assert.deepEqual((await visit.kept()).map((kept) => kept.key), [key]);
  await visit.page.getByRole('button', { name: 'Forget it' }).click();
  await until('it to be forgotten', async () => (await visit.kept()).length === 0);
  assert.equal((await demo.finish(key)).amount, 1450);
});

test('two tabs with the same basket have the same key', async () => {
  await visit.fill();
  await visit.turn('Stop the API', true);
  const other = await visit.open('#/checkout');
  await visit.pay();
  await until('an attempt', () => visit.attempts.length >= 1);
  await visit.pay(other);
  await until('attempts of both', async () => (await visit.kept())[0].attempts >= 3);
  await visit.turn('Stop the API', false);
  await until('it to be settled', async () => (await visit.kept()).length === 0);
  const keys = visit.keys();
  assert.equal(keys.length, 1);
  await until('the basket of the other tab to be empty', () => other.locator('#basket-count').isHidden());
  await demo.finish(keys[0]);
});

test('an old intent waits for a person’s word, and can be forgotten', async () => {
  const old = { key: 'old-intent-1', path: '/checkout', body: '{"items":[{"sku":"ink","quantity":1}]}', begun_at: '2026-01-02T03:04:05Z', attempts: 1 };
  const older = { ...old, key: 'old-intent-2', begun_at: '2026-01-01T00:00:00Z' };
  await visit.page.evaluate((intents) => intents.forEach((intent) => localStorage.setItem(`oncepost.intent.${intent.key}`, JSON.stringify(intent))), [old, older]);
  await visit.page.reload();
  const notices = visit.page.locator('#unsettled .notice');
  await until('both to be shown', async () => (await notices.count()) === 2);
  await notices.first().getByRole('button', { name: 'Forget it' }).click();
  await until('one to be left', async () => (await notices.count()) === 1);
  assert.deepEqual(visit.attempts, []);
  await notices.getByRole('button', { name: 'Ask again' }).click();
  await visit.page.getByText(/^Order \w{8} is paid\.$/).waitFor();
  assert.deepEqual(visit.keys(), [old.key]);
  await demo.finish(old.key);
  await demo.finish(older.key, { paid: false });
});

test('what is declined is told, recorded once, and tried again as a new intent', async () => {
  // More than the customer has: 99 pens and 99 books and 99 inks cost 10,543.50.
  const items = [['fountain-pen', 99], ['ledger-book', 99], ['ink', 99]].map(([sku, quantity]) => ({ sku, quantity }));
  await visit.page.evaluate((basket) => localStorage.setItem('foolscap.basket', JSON.stringify(basket)), items);
  await visit.page.goto(`${visit.shop}/#/checkout`);
  await visit.page.reload();
  await visit.pay();
  const declined = visit.page.locator('#payment .notice.bad');
  await declined.getByText('Your account does not hold enough.').waitFor();
  assert.deepEqual(await visit.kept(), []);
  await visit.verdict('Declined, and so recorded');
  await visit.picture('declined');
  await visit.pay();
  await until('the second attempt', () => visit.attempts.length === 2);
  await until('its answer', async () => (await visit.kept()).length === 0);
  const keys = visit.keys();
  assert.equal(keys.length, 2);
  for (const key of keys) await demo.finish(key, { paid: false });
});

// ---- The switches, and what the panel says

test('a lost reply: sent twice, moved once, told once', async () => {
  await visit.picture('shop');
  await visit.fill(['Ink', 'Book']);
  await visit.turn('Lose the reply', true);
  await visit.picture('checkout');
  await visit.pay();
  const [key] = await visit.receipt();
  const figures = await visit.verdict(/Sent \d times, moved once, told once\./);
  assert.ok(figures.attempts >= 2);
  assert.deepEqual([figures.transfers, figures.events], [1, 1]);
  const attempts = visit.page.locator('.attempts li');
  assert.match(await attempts.first().textContent(), /201 first answer.*answer lost on the way back/);
  assert.match(await attempts.last().textContent(), /201 replayed.*answer delivered/);
  assert.equal(await visit.page.getByRole('switch', { name: /Lose the reply/ }).getAttribute('aria-checked'), 'false');
  await visit.picture('receipt', { fullPage: true });

  // What the panel shows is what the API says.
  const transfer = await demo.finish(key);
  const record = await demo.lookUp(key);
  assert.deepEqual([record.state, record.original.status, record.original.location], ['completed', 201, `/v1/transfers/${transfer.id}`]);
  assert.equal(record.attempts, figures.attempts);
  await visit.page.locator('#facts', { hasText: `${record.attempts} times, last at` }).waitFor();
  const panel = await visit.page.locator('#facts').innerText();
  assert.match(panel, /State\s+completed\s+First answer\s+201, kept at/);
  assert.ok(panel.includes(key) && panel.includes(transfer.id));
  const { customer, merchant } = demo.ready.accounts.test;
  const euros = (cents) => `€${(cents / 100).toLocaleString('en-IE', { minimumFractionDigits: 2 })}`;
  const [{ balance: theirs }, { balance: ours }] = await Promise.all([customer, merchant].map((id) => demo.get(`/v1/accounts/${id}`)));
  assert.match(panel, new RegExp(`Customer\\s+−€42\\.50\\s+${euros(theirs.available)}`));
  assert.match(panel, new RegExp(`Merchant\\s+\\+€42\\.50\\s+${euros(ours.available)}`));
  const [event] = await demo.events(transfer.id);
  const [place, , position, id] = event.split(' ');
  const [partition, offset] = place.split('/');
  assert.ok(panel.includes(id) && panel.includes(`position ${position}`));
  assert.ok(panel.includes(`partition ${partition}, offset ${offset}`));

  await visit.page.getByRole('link', { name: 'Orders', exact: true }).click();
  await visit.page.getByRole('link', { name: new RegExp(transfer.metadata.order) }).waitFor();
  await visit.picture('orders');
});

test('a slow network takes four seconds, and one attempt', async () => {
  await visit.turn('Slow network', true);
  await visit.fill();
  const begun = Date.now();
  await visit.pay();
  await visit.page.getByText('You may reload, go back, or lose the network.').waitFor();
  const [key] = await visit.receipt();
  assert.ok(Date.now() - begun >= 4000);
  assert.equal(visit.attempts.length, 1);
  await demo.finish(key);
});

test('a double tap: two requests at once with the same key, one transfer', async () => {
  await visit.fill();
  await visit.turn('Double tap', true);
  await visit.pay();
  const keys = await visit.receipt();
  await until('both requests', () => visit.attempts.length === 2);
  assert.equal(keys.length, 1);
  assert.equal(visit.attempts[0].body, visit.attempts[1].body);
  const figures = await visit.verdict(/Sent 2 times, moved once, told once\./);
  assert.deepEqual(figures, { attempts: 2, transfers: 1, events: 1 });
  const answers = await visit.page.locator('.attempts .mark').allTextContents();
  assert.deepEqual(answers.sort(), ['201 first answer', '201 replayed']);
  await demo.finish(keys[0]);
});

test('a stopped API: the key is kept over a reload until the API is back', async () => {
  await visit.fill();
  await visit.turn('Stop the API', true);
  await assert.rejects(fetch(`${demo.ready.api}/livez`), 'its port refuses connections');
  await visit.pay();
  await visit.verdict('The API is stopped.');
  await until('two attempts', () => visit.attempts.length >= 2);
  const [{ key }] = await visit.kept();
  await visit.page.reload();
  await visit.page.getByText('You can’t be charged twice.').waitFor();
  assert.deepEqual((await visit.kept()).map((intent) => intent.key), [key]);
  await visit.page.emulateMedia({ colorScheme: 'dark' });
  await visit.picture('stopped-api-dark', { fullPage: true });
  await visit.turn('Stop the API', false);
  assert.deepEqual(await visit.receipt(), [key]);
  await demo.finish(key);
});

test('a stopped Kafka: the payment is made, and its event waits in the outbox', async () => {
  await visit.fill();
  await visit.turn('Stop Kafka', true);
  await visit.pay();
  const [key] = await visit.receipt();
  const before = await visit.verdict('Its event waits in the outbox.');
  assert.deepEqual(before, { attempts: 1, transfers: 1, events: 0 });
  await visit.page.getByText(/Outbox: position \d+, committed with the transfer/).waitFor();
  await visit.picture('stopped-kafka');
  await visit.turn('Stop Kafka', false);
  const figures = await visit.verdict('Moved once, told once.');
  assert.deepEqual(figures, { attempts: 1, transfers: 1, events: 1 });
  await demo.finish(key);
});

// ---- The page itself

test('everything can be done with the keyboard alone', async () => {
  const { page } = visit;
  const press = async (key, times = 1) => {
    for (let time = 0; time < times; time += 1) await page.keyboard.press(key);
  };
  const focused = () => page.evaluate(() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim());
  /** Goes on by Tab until something has the focus; it has to show that it has. */
  const tabTo = async (name) => {
    for (let steps = 0; steps < 60; steps += 1) {
      if (name.test(await focused())) {
        const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
        assert.notEqual(outline, 'none', `${name} shows its focus`);
        return;
      }
      await press('Tab');
    }
    assert.fail(`Tab does not reach ${name}`);
  };
  await press('Tab');
  assert.equal(await focused(), 'Skip to the shop');
  await press('Enter');
  await tabTo(/^Add Iron gall ink/);
  await press('Enter');
  await until('the basket to be told of', async () => /Iron gall ink: 1 in the basket/.test(await page.locator('#said').textContent()));
  await page.keyboard.press('Home');
  await page.evaluate(() => document.activeElement.blur());
  await tabTo(/^Basket/);
  await press('Enter');
  await until('the heading to have the focus', async () => (await focused()) === 'Your basket');
  await tabTo(/^One Iron gall ink more/);
  await press('Enter');
  await until('the focus to stay', async () => /^One Iron gall ink more/.test(await focused()));
  await tabTo(/^To the checkout/);
  await press('Enter');
  await until('the heading to have the focus', async () => (await focused()) === 'Checkout');
  await tabTo(/^Lose the reply/);
  await press('Space');
  await until('the switch to be on', async () => (await page.getByRole('switch', { name: /Lose the reply/ }).getAttribute('aria-checked')) === 'true');
  await press('Shift+Tab');
  assert.match(await focused(), /^Pay €29\.00/);
  await press('Enter');
  await until('the heading to have the focus', async () => (await focused()) === 'Thank you');
  assert.match(await page.locator('#said').textContent(), /^Paid\. Order \w{8}\.$/);
  const [key, ...others] = visit.keys();
  assert.deepEqual(others, []);
  assert.equal((await demo.finish(key)).amount, 2900);
});

test('it works on a narrow screen, without scrolling sideways', async () => {
  await visit.end();
  visit = await Visit.begin({ viewport: PHONE, deviceScaleFactor: 2 });
  const fits = async (where) => {
    const wide = await visit.page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= PHONE.width, `${where} is ${wide} wide`);
    // What is to be touched has to be 24 pixels each way (WCAG 2.2, 2.5.8).
    const small = await visit.page.evaluate(() =>
      [...document.querySelectorAll('button, nav a, .button')]
        .filter((item) => item.checkVisibility())
        .map((item) => [item.textContent, item.getBoundingClientRect()])
        .filter(([, { width, height }]) => width < 24 || height < 24)
        .map(([text]) => text),
    );
    assert.deepEqual(small, [], where);
  };
  await fits('the shop');
  await visit.picture('phone');
  await visit.picture('phone-shop', { fullPage: true });
  await visit.fill(['Pen', 'Paper']);
  await fits('the checkout');
  await visit.turn('Double tap', true);
  await visit.pay();
  const keys = await visit.receipt();
  await visit.verdict('Sent 2 times, moved once, told once.');
  await fits('the receipt');
  await visit.picture('phone-receipt', { fullPage: true });
  await visit.page.getByRole('link', { name: 'Basket' }).click();
  await fits('the basket');
  await visit.page.getByRole('link', { name: 'Orders', exact: true }).click();
  await visit.page.locator('.orders li').first().waitFor();
  await fits('the orders');
  assert.equal(keys.length, 1);
  await demo.finish(keys[0]);
});

test('text has enough contrast, light and dark, and everything to press has a name', async () => {
  const weak = () => {
    const parse = (color) => color.match(/[\d.]+/g).map(Number);
    const luminance = ([red, green, blue]) => {
      const [r, g, b] = [red, green, blue].map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (item) => {
      for (let at = item; at; at = at.parentElement) {
        const color = parse(getComputedStyle(at).backgroundColor);
        if (color[3] !== 0) return color;
      }
      return [255, 255, 255];
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const item = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || !item.checkVisibility() || item.closest('noscript, .visually-hidden, .skip')) continue;
      const [one, other] = [luminance(parse(getComputedStyle(item).color)), luminance(ground(item))];
      const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      if (ratio < 4.5) found.push(`${walker.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
    }
    return found;
  };
  const nameless = () => [...document.querySelectorAll('button, a')].filter((item) => !(item.getAttribute('aria-label') ?? item.textContent).trim()).length;
  const look = async (where) => {
    for (const colorScheme of ['light', 'dark']) {
      await visit.page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
      assert.deepEqual(await visit.page.evaluate(weak), [], `${where}, ${colorScheme}`);
      assert.equal(await visit.page.evaluate(nameless), 0, where);
    }
  };
  await look('the shop');
  await visit.fill();
  await look('the checkout');
  await visit.turn('Stop the API', true);
  await visit.pay();
  await visit.page.getByText('You can’t be charged twice.').waitFor();
  await visit.verdict('The API is stopped.');
  await look('a payment that waits');
  await visit.turn('Stop the API', false);
  const [key] = await visit.receipt();
  await visit.verdict('told once.');
  await look('the receipt');
  await demo.finish(key);
});

test('the page may load nothing but its own files, and its backend answers its own page only', async () => {
  const page = await fetch(visit.shop);
  const policy = page.headers.get('content-security-policy');
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe|https?:|\*/);
  assert.equal(page.headers.get('x-content-type-options'), 'nosniff');

  // Another site's page in the same browser: it can neither pay nor stop anything.
  const other = await visit.context.newPage();
  await other.goto(stranger.origin);
  const tried = await other.evaluate(async (shop) => {
    const send = (type, path, body) =>
      fetch(`${shop}${path}`, { method: 'POST', mode: type === 'text/plain' ? 'no-cors' : 'cors', headers: { 'Content-Type': type }, body }).then(
        ({ type: kind }) => kind,
        () => 'refused',
      );
    return [
      await send('application/json', '/panel/switches', '{"switch":"stopped_api","on":true}'),
      await send('text/plain', '/panel/switches', '{"switch":"stopped_api","on":true}'),
    ];
  }, visit.shop);
  // What a page without CORS can't read has still been sent: the second one has been refused by the backend.
  assert.deepEqual(tried, ['refused', 'opaque']);
  await other.close();
  visit.hosts.delete(new URL(stranger.origin).host);
  assert.equal((await fetch(`${demo.ready.api}/livez`)).status, 200);
});

// ---- Other origins

test('on an origin without randomUUID the page makes its keys all the same; a shop on its own can’t stop what runs elsewhere', async (context) => {
  const shop = await demo.shopAlone({}, '--host', 'shop.test');
  context.after(() => shop.stop());
  const { port } = new URL(shop.ready.shop);
  const named = await chromium.launch(launch('--host-resolver-rules=MAP shop.test 127.0.0.1'));
  context.after(() => named.close());
  const plain = await Visit.begin({ shop: `http://shop.test:${port}`, from: named });
  assert.deepEqual(await plain.page.evaluate(() => [isSecureContext, typeof crypto.randomUUID]), [false, 'undefined']);
  await plain.fill();
  await plain.turn('Lose the reply', true);
  await plain.pay();
  const keys = await plain.receipt();
  assert.equal(keys.length, 1);
  assert.match(keys[0], UUID);
  await plain.verdict(/moved once, told once\./);
  for (const [name, reason] of [['Stop the API', 'docker compose stop api'], ['Stop Kafka', 'docker compose stop kafka']]) {
    const button = plain.page.getByRole('switch', { name: new RegExp(name) });
    assert.equal(await button.getAttribute('aria-disabled'), 'true');
    assert.match(await button.textContent(), new RegExp(reason));
    await button.click({ force: true });
    assert.equal(await button.getAttribute('aria-checked'), 'false');
  }
  await plain.end();
  await demo.finish(keys[0]);

  // Under a name that nobody made known, it answers nothing: another site could have its own name resolved to here.
  const asked = get(`${shop.ready.shop}/products`, { headers: { Host: 'evil.example' } });
  const [stray] = await once(asked, 'response');
  assert.equal(stray.statusCode, 403);
  stray.resume();
});

test('a page of a permitted origin calls the API itself, with the same module', async () => {
  const page = await visit.context.newPage();
  await page.goto(stranger.origin);
  const { customer, merchant } = demo.ready.accounts.test;
  const request = { source_account_id: customer, destination_account_id: merchant, amount: 7, currency: 'EUR' };
  const outcomes = await page.evaluate(
    async ({ url, key, body }) => {
      const { Intents } = await import('/retry.js');
      const headers = { Authorization: `Bearer ${key}` };
      const tell = ({ state, answer }) => ({ state, status: answer.status, replayed: answer.replayed, location: answer.headers.get('location'), body: answer.body });
      const intents = new Intents({ storage: localStorage, headers });
      const intent = intents.begin(url, body);
      const twice = [new Intents({ storage: localStorage, headers }), intents].map((sender) => sender.settle(intent).then(tell));
      return Promise.all(twice);
    },
    { url: `${demo.ready.api}/v1/transfers`, key: demo.ready.keys.test, body: JSON.stringify(request) },
  );
  const [one, other] = outcomes.sort((left, right) => left.replayed - right.replayed);
  assert.deepEqual([one.state, one.status, one.replayed, other.state, other.status, other.replayed], ['final', 201, false, 'final', 201, true]);
  assert.equal(one.body, other.body);
  assert.equal(one.location, `/v1/transfers/${JSON.parse(one.body).id}`);
  assert.equal(other.location, one.location);
  await page.close();
  visit.hosts.delete(new URL(stranger.origin).host);
  visit.hosts.delete(new URL(demo.ready.api).host);

  const preflight = await fetch(`${demo.ready.api}/v1/transfers`, {
    method: 'OPTIONS',
    headers: { Origin: stranger.origin, 'Access-Control-Request-Method': 'POST', 'Access-Control-Request-Headers': 'idempotency-key' },
  });
  assert.match(preflight.headers.get('access-control-allow-headers'), /idempotency-key/);
  const exposed = await fetch(`${demo.ready.api}/v1/transfers`, { headers: { Origin: stranger.origin } });
  for (const name of ['location', 'retry-after', 'idempotent-replayed']) {
    assert.match(exposed.headers.get('access-control-expose-headers'), new RegExp(name), name);
  }
  const { data } = await demo.get(`/v1/transfers?account_id=${customer}&limit=100`);
  assert.equal(data.filter(({ amount }) => amount === 7).length, 1);
});
