// The module that sends a request until its outcome is known, without a browser.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { test } from 'node:test';

import { Intents, createKey, judge, readRetryAfter } from '../../crates/demo/shop/retry.js';

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
const BODY = '{"items":[{"sku":"ledger-book","quantity":1}]}';

/** The Web Storage of a page, which outlives it. */
class MemoryStorage {
  items = new Map();

  get length() {
    return this.items.size;
  }

  key(index) {
    return [...this.items.keys()][index] ?? null;
  }

  getItem(name) {
    return this.items.get(name) ?? null;
  }

  setItem(name, value) {
    this.items.set(name, String(value));
  }

  removeItem(name) {
    this.items.delete(name);
  }
}

const problem = (status, name, headers = {}) =>
  new Response(JSON.stringify({ type: `/problems/${name}`, status }), { status, headers });
const created = (headers = {}) => new Response('{"id":"1"}', { status: 201, headers });
const lost = () => Promise.reject(new TypeError('Failed to fetch'));

/** Intents that answer from a list, and tell what was sent and how long was waited. No pause lasts. */
function scripted(answers, options = {}) {
  const sent = [];
  const steps = [];
  const intents = new Intents({
    storage: new MemoryStorage(),
    random: () => 0,
    fetch: async (path, request) => {
      sent.push({ path, body: request.body, key: request.headers['Idempotency-Key'] });
      return answers.shift()();
    },
    report: (intent, step) => steps.push(step),
    ...options,
  });
  return { intents, sent, steps };
}

test('a key is a random UUID, on origins without randomUUID too', () => {
  assert.match(createKey(), UUID);
  const plain = { getRandomValues: (bytes) => globalThis.crypto.getRandomValues(bytes) };
  assert.match(createKey(plain), UUID);
  assert.notEqual(createKey(plain), createKey(plain));
});

test('what an answer means', () => {
  for (const status of [200, 201, 202, 422]) assert.equal(judge(status), 'final', status);
  for (const status of [408, 425, 429, 500, 502, 503, 504]) assert.equal(judge(status), 'again', status);
  for (const status of [400, 401, 403, 404, 405, 413, 415]) assert.equal(judge(status), 'refused', status);
  assert.equal(judge(409, '/problems/request-in-progress'), 'again');
  assert.equal(judge(409, 'https://api.example/problems/request-in-progress'), 'again');
  assert.equal(judge(409, '/problems/idempotency-key-reused'), 'final');
  assert.equal(judge(409), 'refused');
});

test('Retry-After is read in both forms, and bounded', () => {
  const now = Date.parse('2026-01-02T03:04:05Z');
  assert.equal(readRetryAfter('2', now), 2000);
  assert.equal(readRetryAfter('Fri, 02 Jan 2026 03:04:15 GMT', now), 10_000);
  assert.equal(readRetryAfter('86400', now), 60_000);
  for (const nothing of [null, undefined, '', 'soon', '-1', 'Fri, 02 Jan 2026 03:00:00 GMT']) {
    assert.equal(readRetryAfter(nothing, now), 0, String(nothing));
  }
});

test('the same request is the same intent until it is forgotten, another request is another', async () => {
  const { intents, sent } = scripted([created, created]);
  const first = intents.begin('/checkout', BODY);
  assert.match(first.key, UUID);
  assert.equal(intents.begin('/checkout', BODY).key, first.key);
  const changed = intents.begin('/checkout', BODY.replace('1', '2'));
  assert.notEqual(changed.key, first.key);
  assert.notEqual(intents.begin('/refund', BODY).key, first.key);
  assert.deepEqual(intents.pending().map((intent) => intent.path), ['/checkout', '/checkout', '/refund']);

  assert.equal((await intents.settle(first)).state, 'final');
  assert.deepEqual(sent, [{ path: '/checkout', body: BODY, key: first.key }]);
  // The page has not recorded the answer yet: where it is closed now, the next one hears it again.
  assert.equal(intents.begin('/checkout', BODY).key, first.key);
  intents.forget(first);
  assert.notEqual(intents.begin('/checkout', BODY).key, first.key);
});

test('everything that leaves the outcome open is tried again with the same key and the same bytes', async () => {
  const { intents, sent } = scripted([
    lost,
    () => problem(503, 'unavailable'),
    () => problem(409, 'request-in-progress'),
    () => problem(429, 'rate-limited'),
    () => problem(500, 'internal'),
    () => new Response('<h1>Bad gateway</h1>', { status: 502 }),
    () => created({ 'Idempotent-Replayed': 'true' }),
  ]);
  const intent = intents.begin('/checkout', BODY);
  const outcome = await intents.settle(intent);
  assert.equal(outcome.state, 'final');
  assert.equal(outcome.answer.status, 201);
  assert.equal(outcome.answer.replayed, true);
  assert.equal(outcome.answer.body, '{"id":"1"}');
  assert.equal(sent.length, 7);
  for (const attempt of sent) assert.deepEqual(attempt, { path: '/checkout', body: BODY, key: intent.key });
});

test('a refusal that the server has recorded is final, and trying again is a new intent', async () => {
  const { intents } = scripted([() => problem(422, 'insufficient-funds')]);
  const intent = intents.begin('/checkout', BODY);
  const outcome = await intents.settle(intent);
  assert.equal(outcome.state, 'final');
  assert.equal(outcome.answer.status, 422);
  assert.equal(outcome.answer.replayed, false);
  intents.forget(intent);
  assert.notEqual(intents.begin('/checkout', BODY).key, intent.key);
});

test('a refusal at the door ends an intent only if no earlier attempt may have arrived', async () => {
  const first = scripted([() => problem(401, 'unauthenticated')]);
  const refused = await first.intents.settle(first.intents.begin('/checkout', BODY));
  assert.equal(refused.state, 'refused');

  const later = scripted([lost, () => problem(401, 'unauthenticated')]);
  const intent = later.intents.begin('/checkout', BODY);
  const open = await later.intents.settle(intent);
  assert.equal(open.state, 'open');
  assert.equal(open.answer.status, 401);
  assert.equal(later.sent.length, 2);
  assert.deepEqual(later.intents.pending().map(({ key }) => key), [intent.key]);
});

test('the key is kept before the first attempt is sent', async () => {
  const storage = new MemoryStorage();
  let kept;
  const { intents } = scripted([created], {
    storage,
    fetch: async () => {
      kept = JSON.parse(storage.getItem(storage.key(0)));
      return created();
    },
  });
  const intent = intents.begin('/checkout', BODY);
  await intents.settle(intent);
  assert.equal(kept.key, intent.key);
  assert.equal(kept.attempts, 1);
  intents.forget(intent);
  assert.equal(storage.length, 0);
});

test('where a key cannot be kept, nothing is sent', () => {
  const full = new MemoryStorage();
  full.setItem = () => {
    throw new DOMException('full', 'QuotaExceededError');
  };
  const { intents, sent } = scripted([created], { storage: full });
  assert.throws(() => intents.begin('/checkout', BODY), { name: 'QuotaExceededError' });
  assert.deepEqual(sent, []);
});

test('after a crash the next page goes on with the same key and knows that the request may have arrived', async () => {
  const storage = new MemoryStorage();
  const crashed = scripted([() => new Promise(() => {})], { storage });
  const intent = crashed.intents.begin('/checkout', BODY);
  crashed.intents.settle(intent);
  await new Promise(setImmediate);

  const { intents, sent } = scripted([() => problem(403, 'forbidden'), created], { storage });
  const [found] = intents.pending();
  assert.equal(found.attempts, 1);
  assert.equal((await intents.settle(found)).state, 'open');
  assert.equal((await intents.settle(found)).state, 'final');
  assert.deepEqual(sent.map(({ key }) => key), [intent.key, intent.key]);
});

test('two at a time send once; two pages send the same key twice', async () => {
  const storage = new MemoryStorage();
  const { intents, sent } = scripted([created], { storage });
  const intent = intents.begin('/checkout', BODY);
  const running = intents.settle(intent);
  assert.equal(intents.settle(intent), running);
  assert.equal(intents.settling(intent), true);

  const other = scripted([() => created({ 'Idempotent-Replayed': 'true' })], { storage });
  const replayed = await other.intents.settle(other.intents.begin('/checkout', BODY));
  assert.equal(replayed.answer.replayed, true);
  await running;
  assert.equal(intents.settling(intent), false);
  assert.deepEqual([sent.length, other.sent.length], [1, 1]);
  assert.equal(sent[0].key, other.sent[0].key);
});

test('a refusal after an attempt of another page does not end the intent', async () => {
  const storage = new MemoryStorage();
  const other = scripted([() => new Promise(() => {})], { storage });
  const { intents } = scripted([() => problem(401, 'unauthenticated')], { storage });
  const intent = intents.begin('/checkout', BODY);
  other.intents.settle(intent);
  assert.equal((await intents.settle(intent)).state, 'open');
  assert.equal(intents.pending().length, 1);
});

test('pauses double, are jittered and bounded, and Retry-After comes on top', async () => {
  const answers = Array.from({ length: 12 }, () => lost);
  answers[1] = () => problem(503, 'unavailable', { 'Retry-After': '0' });
  // `online` fires at once, which ends each pause.
  const events = { addEventListener: (name, done) => setImmediate(done), removeEventListener() {} };
  const { intents, steps, sent } = scripted(answers, { random: () => 0.5, events });
  const intent = intents.begin('/checkout', BODY);
  const outcome = await intents.settle(intent);
  assert.equal(outcome.state, 'open');
  assert.equal(sent.length, 12);
  const pauses = steps.filter(({ step }) => step === 'waiting').map(({ pause_ms }) => pause_ms);
  assert.deepEqual(pauses, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000, 10_000, 10_000, 10_000]);
  assert.deepEqual(intents.pending().map(({ key, attempts }) => [key, attempts]), [[intent.key, 12]]);

  const asked = scripted([() => problem(503, 'unavailable', { 'Retry-After': '7' }), created], { random: () => 1, events });
  await asked.intents.settle(asked.intents.begin('/checkout', BODY));
  assert.equal(asked.steps[1].pause_ms, 7500);
});

test('without a network nothing is sent until it is back', async () => {
  let up = false;
  const events = new EventTarget();
  const { intents, sent, steps } = scripted([created], { events, online: () => up });
  const running = intents.settle(intents.begin('/checkout', BODY));
  await new Promise(setImmediate);
  assert.deepEqual(steps, [{ step: 'offline' }]);
  assert.deepEqual(sent, []);
  up = true;
  events.dispatchEvent(new Event('online'));
  assert.equal((await running).state, 'final');
  assert.equal(sent.length, 1);

  const never = scripted([], { online: () => false, offlineMax: 1 });
  const intent = never.intents.begin('/checkout', BODY);
  assert.deepEqual(await never.intents.settle(intent), { state: 'open', answer: undefined });
  assert.equal(never.intents.pending()[0].attempts, 0);
});

test('intents are found oldest first, and what is none is left alone', () => {
  const storage = new MemoryStorage();
  const intent = (key, begun_at) => JSON.stringify({ key, path: '/checkout', body: BODY, begun_at, attempts: 1 });
  storage.setItem('oncepost.intent.x', 'not JSON');
  storage.setItem('oncepost.intent.y', '{"key":1,"path":"/checkout"}');
  storage.setItem('oncepost.intent.z', '{"key":"z"}');
  storage.setItem('of.someone.else', intent('w', '2026-01-01T00:00:00Z'));
  storage.setItem('oncepost.intent.b', intent('b', '2026-01-03T00:00:00Z'));
  storage.setItem('oncepost.intent.a', intent('a', '2026-01-02T00:00:00Z'));
  const { intents } = scripted([], { storage });
  assert.deepEqual(intents.pending().map(({ key }) => key), ['a', 'b']);
  assert.equal(storage.length, 6);
});

test('over a real network: a cut, an answer cut in the middle and silence are tried again', async (context) => {
  const keys = [];
  const ways = [
    (request, response) => response.destroy(),
    (request, response) => {
      response.writeHead(422, { 'Content-Length': 100 });
      response.write('{"type":');
      // The start of the answer has to have left before the cut.
      response.write('"', () => response.destroy());
    },
    () => {},
    (request, response) => {
      response.writeHead(201, { 'Content-Type': 'application/json', 'Idempotent-Replayed': 'true' });
      response.end('{"id":"1"}');
    },
  ];
  const server = createServer((request, response) => {
    keys.push(request.headers['idempotency-key']);
    request.resume().on('end', () => ways[keys.length - 1](request, response));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  context.after(() => {
    server.closeAllConnections();
    server.close();
  });

  const intents = new Intents({ storage: new MemoryStorage(), random: () => 0, attemptTimeout: 500 });
  const intent = intents.begin(`http://127.0.0.1:${server.address().port}/checkout`, BODY);
  const outcome = await intents.settle(intent);
  assert.equal(outcome.state, 'final');
  assert.equal(outcome.answer.status, 201);
  assert.equal(outcome.answer.replayed, true);
  assert.deepEqual(keys, Array(4).fill(intent.key));
});
