// A demo of its own for the tests, and what is true in it: asked from the API and from Kafka, never from the page.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);

export const ROOT = join(dirname(fileURLToPath(import.meta.url)), '../..');

/** Where the binaries are; `run.sh` builds them. */
const BINARIES = process.env.ONCEPOST_BIN ?? join(ROOT, 'target/debug');

/** How long the demo may take to start: Kafka is fetched the first time. */
const READY_WITHIN_MS = 300_000;
/** How long anything else is waited for. */
export const PATIENCE_MS = 30_000;
const TURN_MS = 50;

/** Asks until the answer is true, and returns it. */
export async function until(what, ask) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    assert.ok(Date.now() < deadline, `waited in vain for: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, TURN_MS));
  }
}

/** A process that tells in a line of JSON that it is ready. */
async function start(argv, environment) {
  const child = spawn(join(BINARIES, 'demo'), argv, {
    env: { ...process.env, ...environment },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let log = '';
  child.stderr.on('data', (text) => {
    log += text;
  });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  const ready = new Promise((resolve, reject) => {
    createInterface(child.stdout).once('line', (line) => resolve(JSON.parse(line)));
    child.once('error', reject);
    ended.then((code) => reject(new Error(`demo ${argv.join(' ')} ended with ${code}: ${log}`)));
    setTimeout(() => reject(new Error(`demo ${argv.join(' ')} is not ready: ${log}`)), READY_WITHIN_MS).unref();
  });
  const stop = async () => {
    child.kill('SIGTERM');
    return ended;
  };
  try {
    return { ready: await ready, stop };
  } catch (error) {
    child.kill('SIGTERM');
    throw error;
  }
}

/** Everything in one process, on free ports and in a folder of its own. */
export class Demo {
  static async start(environment = {}) {
    const data = await mkdtemp(join(tmpdir(), 'oncepost-shop-'));
    // Where root runs the tests, PostgreSQL runs as a user who has to get through to its data.
    await chmod(data, 0o711);
    const argv = ['--port', '0', '--shop-port', '0', '--kafka-port', '0', '--data', join(data, 'demo')];
    const { ready, stop } = await start(argv, { ONCEPOST_PROFILE: 'demo', ...environment });
    assert.ok(ready.kafka, 'the tests need a Kafka, and so Java and Maven');
    return Object.assign(new Demo(), { ready, data, stopProcess: stop });
  }

  /** A shop that runs on its own before this demo's API. */
  shopAlone(environment, ...argv) {
    const { api, kafka, postgres } = this.ready;
    const named = { ONCEPOST_PROFILE: 'demo', DATABASE_URL: postgres, API_URL: api, KAFKA_BROKERS: kafka, SHOP_LISTEN: '127.0.0.1:0' };
    return start(['shop', ...argv], { ...named, ...environment });
  }

  /** Stops everything; the books must balance before. */
  async stop() {
    const { stdout } = await run(join(BINARIES, 'api'), ['audit'], { env: { ...process.env, DATABASE_URL: this.ready.postgres } });
    const code = await this.stopProcess();
    await rm(this.data, { recursive: true, force: true });
    assert.equal(stdout, '', 'the audit has found something');
    assert.equal(code, 0);
  }

  async get(path) {
    const { api, keys } = this.ready;
    const response = await fetch(`${api}${path}`, { headers: { Authorization: `Bearer ${keys.test}` } });
    assert.equal(response.status, 200, path);
    return response.json();
  }

  /** What the API says of a key. */
  async lookUp(key) {
    const { api, keys } = this.ready;
    const headers = { Authorization: `Bearer ${keys.test}`, 'Content-Type': 'application/json' };
    const response = await fetch(`${api}/v1/idempotency-keys/lookup`, { method: 'POST', headers, body: JSON.stringify({ key }) });
    assert.equal(response.status, 200);
    return response.json();
  }

  /** The transfers that pay for the order of a key: the number is a hash of the key, in Crockford's base 32. */
  async transfers(key) {
    const bits = createHash('sha256').update(key).digest().readUIntBE(0, 5);
    let number = '';
    for (let rest = bits, index = 0; index < 8; index += 1, rest = Math.floor(rest / 32)) {
      number = '0123456789ABCDEFGHJKMNPQRSTVWXYZ'[rest % 32] + number;
    }
    const { data } = await this.get(`/v1/transfers?account_id=${this.ready.accounts.test.customer}&limit=100`);
    return data.filter(({ metadata }) => metadata?.order === number);
  }

  /** The events of a transfer as a `read_committed` consumer sees them. */
  async events(transfer) {
    const { stdout } = await run(join(BINARIES, 'demo'), ['events', transfer, '--brokers', this.ready.kafka]);
    return stdout.split('\n').filter(Boolean);
  }

  /**
   * What has to be true of a payment in the end: one transfer under its key, two postings that sum to zero, one event. Or,
   * where nothing is to be paid, none. Returns the transfer.
   */
  async finish(key, { paid = true } = {}) {
    const transfers = await this.transfers(key);
    assert.equal(transfers.length, paid ? 1 : 0, 'transfers under the key');
    if (!paid) return undefined;
    const [transfer] = transfers;
    const { customer, merchant } = this.ready.accounts.test;
    const legs = [];
    for (const account of [customer, merchant]) {
      const { data } = await this.get(`/v1/accounts/${account}/postings?limit=100`);
      legs.push(...data.filter(({ transfer_id: id }) => id === transfer.id).map(({ amount }) => amount));
    }
    assert.deepEqual(legs, [-transfer.amount, transfer.amount]);
    const events = await until('the event in Kafka', async () => {
      const found = await this.events(transfer.id);
      return found.length > 0 && found;
    });
    assert.equal(events.length, 1, 'events of the transfer');
    return transfer;
  }
}
