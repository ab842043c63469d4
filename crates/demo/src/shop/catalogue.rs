//! What the shop sells, and how an order becomes a transfer.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::seed::Accounts;

/// Something to buy.
#[derive(Debug, Serialize)]
pub(crate) struct Product {
    /// Its name in requests, and the picture's on the page.
    sku: &'static str,
    name: &'static str,
    detail: &'static str,
    /// In cents.
    price: i64,
}

/// All of it. A shop whose prices change would keep each order with its prices from the first attempt on: a retry has to
/// become the same transfer, or the API refuses it as another request under the same key.
pub(crate) const PRODUCTS: [Product; 6] = [
    Product { sku: "ledger-book", name: "Ledger book", detail: "Linen, 192 numbered pages", price: 2_800 },
    Product { sku: "fountain-pen", name: "Fountain pen", detail: "Resin and steel, fine nib", price: 6_400 },
    Product { sku: "ink", name: "Iron gall ink", detail: "Blue-black, 50 ml", price: 1_450 },
    Product { sku: "letter-paper", name: "Letter paper", detail: "Laid, 40 sheets", price: 1_200 },
    Product { sku: "envelopes", name: "Envelopes", detail: "Tissue-lined, 25 pieces", price: 980 },
    Product { sku: "sealing-wax", name: "Sealing wax", detail: "Two sticks, vermilion", price: 750 },
];

/// The most pieces of a product in one order.
const QUANTITY_MAX: u32 = 99;

/// What tells the shop's transfers from others, as a member of their metadata.
const SHOP: (&str, &str) = ("shop", "foolscap");

/// The member of a transfer's metadata that holds the order's number.
const ORDER: &str = "order";

/// What the page sends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Basket {
    items: Vec<Item>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    sku: String,
    quantity: u32,
}

/// What is bought: each product at most once, in the catalogue's order, so that the same basket is always the same order.
#[derive(Debug)]
pub(crate) struct Order {
    lines: Vec<(&'static Product, u32)>,
}

/// Why a basket is no order.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    /// The body is not what the page sends.
    #[error("the basket can't be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// Nothing is in it.
    #[error("the basket is empty")]
    Empty,
    /// The shop has no such product.
    #[error("there is no product named {0}")]
    ProductUnknown(String),
    /// A product is named twice.
    #[error("{0} is in the basket twice")]
    Twice(&'static str),
    /// None, or too many.
    #[error("of {0}, 1 to {max} can be ordered", max = QUANTITY_MAX)]
    Quantity(&'static str),
}

impl Order {
    /// Reads the body of a checkout.
    pub(crate) fn read(body: &[u8]) -> Result<Self, OrderError> {
        let Basket { items } = serde_json::from_slice(body)?;
        let mut lines: Vec<(&'static Product, u32)> = Vec::new();
        for Item { sku, quantity } in items {
            let Some(product) = PRODUCTS.iter().find(|product| product.sku == sku) else {
                return Err(OrderError::ProductUnknown(sku));
            };
            if lines.iter().any(|(known, _)| known.sku == product.sku) {
                return Err(OrderError::Twice(product.name));
            }
            if !(1..=QUANTITY_MAX).contains(&quantity) {
                return Err(OrderError::Quantity(product.name));
            }
            lines.push((product, quantity));
        }
        if lines.is_empty() {
            return Err(OrderError::Empty);
        }
        lines.sort_by_key(|(product, _)| PRODUCTS.iter().position(|listed| listed.sku == product.sku));
        Ok(Self { lines })
    }

    /// The transfer that pays for it. The same order under the same number is the same bytes, now and after a restart.
    pub(crate) fn transfer(&self, number: &str, accounts: &Accounts) -> Value {
        let amount: i64 = self.lines.iter().map(|(product, quantity)| product.price * i64::from(*quantity)).sum();
        let names = self.lines.iter().map(|(product, quantity)| format!("{quantity} × {}", product.name));
        let mut metadata: Map<String, Value> =
            self.lines.iter().map(|(product, quantity)| (product.sku.into(), line(product, *quantity))).collect();
        metadata.insert(SHOP.0.into(), SHOP.1.into());
        metadata.insert(ORDER.into(), number.into());
        json!({
            "source_account_id": accounts.customer,
            "destination_account_id": accounts.merchant,
            "amount": amount,
            "currency": "EUR",
            "description": names.collect::<Vec<_>>().join(", "),
            "metadata": metadata,
        })
    }
}

/// A line of an order as the metadata of its transfer keeps it: the ledger is the shop's only memory, and a receipt shows
/// the price of its day.
fn line(product: &Product, quantity: u32) -> Value {
    format!("{quantity}@{}", product.price).into()
}

/// The letters of an order's number: those of Crockford's base 32, none of which is taken for another.
const LETTERS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// The number of the order that a key stands for. It follows from the key, so that every attempt has the same one, and
/// tells nothing of it: a key is a secret, and a number is printed on receipts. 40 bits of a hash. A key in quotes is the
/// same key to the API, and so the same order.
pub(crate) fn order_number(key: &[u8]) -> String {
    let unquoted = key.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let key = unquoted.unwrap_or(key);
    let digest = Sha256::digest(key);
    let bits = digest.iter().take(5).fold(0_u64, |bits, byte| (bits << 8) | u64::from(*byte));
    let letters = (0..8_u32).rev().map(|index| {
        let letter = usize::try_from((bits >> (5 * index)) & 31).unwrap_or(0);
        char::from(LETTERS[letter])
    });
    letters.collect()
}

/// Whether a transfer, as the API shows it, pays for an order of this shop; with `number`, for that one.
pub(crate) fn pays_for(transfer: &Value, number: Option<&str>) -> bool {
    let member = |name: &str| transfer["metadata"][name].as_str();
    member(SHOP.0) == Some(SHOP.1) && number.is_none_or(|number| member(ORDER) == Some(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts { customer: "c".to_owned(), merchant: "m".to_owned() }
    }

    #[test]
    fn a_basket_becomes_one_transfer_whatever_its_order() {
        let one = Order::read(br#"{"items":[{"sku":"ink","quantity":2},{"sku":"ledger-book","quantity":1}]}"#).unwrap();
        let other =
            Order::read(br#"{"items":[{"quantity":1,"sku":"ledger-book"},{"sku":"ink","quantity":2}]}"#).unwrap();
        let transfer = one.transfer("7K3MQ2ZD", &accounts());
        assert_eq!(transfer.to_string(), other.transfer("7K3MQ2ZD", &accounts()).to_string());
        assert_eq!(transfer["amount"], 2_800 + 2 * 1_450);
        assert_eq!(transfer["description"], "1 × Ledger book, 2 × Iron gall ink");
        assert_eq!(
            transfer["metadata"],
            json!({"shop": "foolscap", "order": "7K3MQ2ZD", "ledger-book": "1@2800", "ink": "2@1450"})
        );
        assert!(pays_for(&transfer, None) && pays_for(&transfer, Some("7K3MQ2ZD")));
        assert!(!pays_for(&transfer, Some("00000000")) && !pays_for(&json!({"metadata": null}), None));
    }

    #[test]
    fn what_is_no_order_is_refused() {
        let refused = |body: &str| Order::read(body.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused(r#"{"items":[]}"#), "the basket is empty");
        assert_eq!(refused(r#"{"items":[{"sku":"yacht","quantity":1}]}"#), "there is no product named yacht");
        let ink = r#"{"sku":"ink","quantity":1}"#;
        assert_eq!(refused(&format!(r#"{{"items":[{ink},{ink}]}}"#)), "Iron gall ink is in the basket twice");
        for quantity in ["0", "100"] {
            let body = format!(r#"{{"items":[{}]}}"#, ink.replace('1', quantity));
            assert_eq!(refused(&body), "of Iron gall ink, 1 to 99 can be ordered");
        }
        for unreadable in ["", "[]", r#"{"items":[{"sku":"ink","quantity":-1}]}"#, r#"{"items":[],"amount":1}"#] {
            assert!(refused(unreadable).starts_with("the basket can't be read"), "{unreadable}");
        }
    }

    #[test]
    fn an_order_number_follows_from_the_key_and_hides_it() {
        assert_eq!(order_number(b"a key"), order_number(b"a key"));
        assert_eq!(order_number(b"a key"), order_number(b"\"a key\""));
        assert_ne!(order_number(b"a key"), order_number(b"another"));
        assert_eq!(order_number(b"a key").len(), 8);
    }
}
