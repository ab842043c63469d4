// The basket, in the browser's storage: it is there after a reload, and in every tab.

const NAME = 'foolscap.basket';
/** The most pieces of a product that the shop sells at a time. */
const QUANTITY_MAX = 99;

export class Basket {
  #storage;

  constructor(storage) {
    this.#storage = storage;
  }

  /** Whether a basket is what stands in the storage under this name. */
  static keeps(name) {
    return name === NAME;
  }

  /** What is in it: `{sku, quantity}`, in the order in which it was put in. Read anew each time, as another tab may have
   * changed it. */
  lines() {
    try {
      const kept = JSON.parse(this.#storage.getItem(NAME)) ?? [];
      return kept.filter(({ sku, quantity }) => typeof sku === 'string' && quantity >= 1 && quantity <= QUANTITY_MAX);
    } catch {
      return [];
    }
  }

  /** How many pieces. */
  count() {
    return this.lines().reduce((sum, { quantity }) => sum + quantity, 0);
  }

  /** Puts more of a product in, or takes some out. */
  add(sku, pieces) {
    const lines = this.lines();
    const line = lines.find((line) => line.sku === sku);
    if (line) line.quantity = Math.min(line.quantity + pieces, QUANTITY_MAX);
    else lines.push({ sku, quantity: pieces });
    this.#storage.setItem(NAME, JSON.stringify(lines.filter(({ quantity }) => quantity >= 1)));
  }

  empty() {
    this.#storage.removeItem(NAME);
  }

  /** What is sent to pay for it. The same basket is the same text, and so the same intent; a changed one is another. */
  request() {
    return JSON.stringify({ items: this.lines() });
  }
}
