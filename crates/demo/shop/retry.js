// Sends a POST until its outcome is known, so that it takes effect once however often it is sent.
//
// The server remembers what it did under an `Idempotency-Key`, and answers the same request with the same key from
// memory. What is left to the client is this module: one key for each intent of a person, kept before the first attempt
// is sent and until a final answer is recorded, over reloads and crashes; and patience between attempts.
//
//     const intents = new Intents({ storage: localStorage });
//     const intent = intents.begin('/checkout', JSON.stringify(basket));   // the same request gets the same key
//     const outcome = await intents.settle(intent);                        // 'final', 'refused' or 'open'
//     if (outcome.state !== 'open') {
//       // Here the page records it: empties the basket, shows the receipt.
//       intents.forget(intent);
//     }
//
//     for (const intent of intents.pending()) intents.settle(intent);      // after a reload, and then the same
//
// Why the page forgets, and not this module: a final answer is not the end. Where a page is closed between the answer and
// its own record of it, the next one finds a full basket. With the key it hears the first answer again; without, it would
// make a new key, and pay twice.
//
// A key in localStorage survives a reload and the crash of a tab. Browsers write it to the disk some seconds later, so that
// a power failure in between may forget it; the server does not.
//
// It depends on nothing and may be copied. It runs in browsers, and in Node.js 18 or newer with any storage that has the
// methods of the Web Storage API.

/** How long an attempt may take: longer than the 15 s within which the API answers, so that its own answer arrives first. */
const ATTEMPT_TIMEOUT_MS = 20_000;

/** The pause after the first attempt; it doubles with each one. A random part of it is waited, so that clients which an
 * outage has stopped together don't come back together. */
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 20_000;

/** The longest `Retry-After` that is obeyed to the letter. */
const LONGEST_RETRY_AFTER_MS = 60_000;

/** How often one call of `settle` tries: for about a minute on average, two at most, besides what the attempts take. */
const ATTEMPTS_MAX = 12;

/** How long one call of `settle` waits for the network to come back. */
const OFFLINE_MAX_MS = 600_000;

/** A fresh key: a random UUID. Browsers offer `randomUUID` on https and on localhost only. */
export function createKey(crypto = globalThis.crypto) {
  if (typeof crypto.randomUUID === 'function') return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const digits = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}

/**
 * What an answer means for the intent. `type` is the `type` of its problem, if it is one.
 *
 * - `final`: what stands in the server's record. Sent again, the request would be answered the same.
 * - `again`: it says nothing about what happened. The same request with the same key is safe, and finds out.
 * - `refused`: this attempt had no effect, and another one would not either.
 */
export function judge(status, type = '') {
  if ((status >= 200 && status < 300) || status === 422) return 'final';
  if (status === 409) {
    if (type.endsWith('/request-in-progress')) return 'again';
    return type.endsWith('/idempotency-key-reused') ? 'final' : 'refused';
  }
  if (status === 408 || status === 425 || status === 429 || status >= 500) return 'again';
  return 'refused';
}

/** How long `Retry-After` asks to wait, in milliseconds: seconds or a date; 0 where it says nothing. */
export function readRetryAfter(text, now = Date.now()) {
  const value = (text ?? '').trim();
  const wait = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - now;
  return Math.min(Math.max(wait || 0, 0), LONGEST_RETRY_AFTER_MS);
}

/**
 * The intents that are not forgotten yet, in a storage of their own: one item each, so that two tabs don't overwrite each
 * other's.
 *
 * An intent is `{key, path, body, begun_at, attempts}`. `attempts` is counted before each attempt is sent: where it is not
 * 0, the request may have arrived.
 *
 * `report(intent, step)` is told what happens: `{step: 'sending', attempt}`, `{step: 'waiting', pause_ms, answer}` (no
 * `answer` where none came) and `{step: 'offline'}`.
 */
export class Intents {
  #storage;
  #prefix;
  #report;
  #options;
  #running = new Map();

  constructor({ storage, prefix = 'oncepost.intent.', report = () => {}, ...options }) {
    this.#storage = storage;
    this.#prefix = prefix;
    this.#report = report;
    this.#options = {
      // Sent with each attempt, such as Authorization. A page that holds no secret needs none.
      headers: {},
      attemptTimeout: ATTEMPT_TIMEOUT_MS,
      attemptsMax: ATTEMPTS_MAX,
      offlineMax: OFFLINE_MAX_MS,
      // The world, for tests.
      fetch: (...request) => globalThis.fetch(...request),
      events: globalThis,
      online: () => globalThis.navigator?.onLine !== false,
      random: Math.random,
      ...options,
    };
  }

  /**
   * The intent to send this request. Until it is forgotten, the same request is the same intent and has the same key;
   * another one, such as a changed basket, is another intent. The key is kept before it is returned. Where it can't be
   * kept, this throws, and nothing should be sent: a reload would forget the key, and with it whether the money has moved.
   */
  begin(path, body) {
    const same = this.pending().find((intent) => intent.path === path && intent.body === body);
    if (same) return same;
    const intent = { key: createKey(), path, body, begun_at: new Date().toISOString(), attempts: 0 };
    this.#keep(intent);
    return intent;
  }

  /** Every intent that is not forgotten, oldest first. */
  pending() {
    const found = [];
    for (let index = 0; index < this.#storage.length; index += 1) {
      const name = this.#storage.key(index);
      if (name?.startsWith(this.#prefix)) found.push(read(this.#storage.getItem(name)));
    }
    return found.filter(Boolean).sort((one, other) => (one.begun_at < other.begun_at ? -1 : 1));
  }

  /** Whether an intent is being sent, or waits to be, here and now. */
  settling(intent) {
    return this.#running.has(intent.key);
  }

  /**
   * Sends the request until its outcome is known or patience ends. Called twice at a time, it sends once. Returns
   *
   * - `{state: 'final', answer}`: it has run, now or before. The answer may be a refusal that the server has recorded, such
   *   as 422 for too little money: trying that again is a new intent. Record it, then `forget` the intent.
   * - `{state: 'refused', answer}`: it has had no effect. `forget` it.
   * - `{state: 'open', answer}`: not known yet. Keep it: calling `settle` again is always safe; telling a person that it
   *   failed is not.
   *
   * An answer is `{status, headers, body, replayed}`; where none ever came, there is none.
   */
  settle(intent) {
    let running = this.#running.get(intent.key);
    if (!running) {
      running = this.#settle({ ...intent }).finally(() => this.#running.delete(intent.key));
      this.#running.set(intent.key, running);
    }
    return running;
  }

  /** Forgets the key: after the outcome is recorded. Before, the request may have run, and nobody would find out by it. */
  forget(intent) {
    this.#storage.removeItem(this.#prefix + intent.key);
  }

  async #settle(intent) {
    const { attemptsMax, random } = this.#options;
    let answer;
    for (let attempt = 1; attempt <= attemptsMax; attempt += 1) {
      if (!(await this.#online(intent))) break;
      // Another tab may have sent it meanwhile.
      intent.attempts = Math.max(intent.attempts, this.#kept(intent)?.attempts ?? 0) + 1;
      this.#keep(intent);
      this.#report(intent, { step: 'sending', attempt: intent.attempts });
      answer = await this.#send(intent);
      const meaning = answer ? judge(answer.status, problemType(answer)) : 'again';
      // A refusal speaks for its own attempt: of an earlier one that got no answer it says nothing.
      if (meaning === 'final' || (meaning === 'refused' && intent.attempts === 1)) return { state: meaning, answer };
      if (meaning === 'refused') break;
      if (attempt < attemptsMax) {
        const pause = Math.min(FIRST_PAUSE_MS * 2 ** (attempt - 1), LONGEST_PAUSE_MS) * random();
        const wait = Math.round(readRetryAfter(answer?.headers.get('retry-after')) + pause);
        this.#report(intent, { step: 'waiting', pause_ms: wait, answer });
        await this.#pause(wait);
      }
    }
    return { state: 'open', answer };
  }

  /** One attempt. An answer that breaks off is none: what it says may be the opposite of what arrived of it. */
  async #send(intent) {
    const { fetch, headers, attemptTimeout } = this.#options;
    try {
      const response = await fetch(intent.path, {
        method: 'POST',
        headers: { ...headers, 'Content-Type': 'application/json', 'Idempotency-Key': intent.key },
        body: intent.body,
        cache: 'no-store',
        redirect: 'error',
        signal: AbortSignal.timeout(attemptTimeout),
      });
      const body = await response.text();
      const replayed = response.headers.get('idempotent-replayed') === 'true';
      return { status: response.status, headers: response.headers, body, replayed };
    } catch {
      return undefined;
    }
  }

  /** Waits until the browser believes that there is a network, and tells whether there is. */
  async #online(intent) {
    const { online, offlineMax } = this.#options;
    if (!online()) {
      this.#report(intent, { step: 'offline' });
      await this.#pause(offlineMax);
    }
    return online();
  }

  /** Waits, but no longer than until the network comes back. */
  #pause(ms) {
    const { events } = this.#options;
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        events.removeEventListener?.('online', done);
        resolve();
      };
      const timer = setTimeout(done, ms);
      events.addEventListener?.('online', done);
    });
  }

  #kept(intent) {
    return read(this.#storage.getItem(this.#prefix + intent.key));
  }

  #keep(intent) {
    this.#storage.setItem(this.#prefix + intent.key, JSON.stringify(intent));
  }
}

/** An intent as it was stored; none where something else stands there. */
function read(text) {
  try {
    const intent = JSON.parse(text);
    return typeof intent?.key === 'string' && typeof intent.path === 'string' ? intent : undefined;
  } catch {
    return undefined;
  }
}

function problemType(answer) {
  if (answer.status < 400) return '';
  try {
    return String(JSON.parse(answer.body).type ?? '');
  } catch {
    return '';
  }
}
