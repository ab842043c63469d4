//! Reading the members of a request's object by today's rules. Every fault is noted and reading goes on, so that a client
//! hears of all faults at once.

use std::collections::BTreeMap;

use ledger::{AccountId, Amount, Balance, Currency, IdempotencyKey, MAX_MINOR_UNITS, Metadata, Text};
use uuid::Uuid;

use crate::fault::{FAULTS_MAX, Fault, pointer};
use crate::json::{Value, member_order};

/// The members of a body's object, and what is wrong with them.
pub(crate) struct Members<'a> {
    members: &'a [(std::borrow::Cow<'a, str>, Value<'a>)],
    known: Vec<&'static str>,
    faults: Vec<Fault>,
}

const UNKNOWN: &str = "is not a member of this request";

/// A balance that a member limits: nothing said, said to be none, or a number.
pub(crate) enum Limit {
    Absent,
    None,
    At(Balance),
}

impl<'a> Members<'a> {
    /// The members of an object; none, and a fault, for any other value.
    pub(crate) fn of(body: &'a Value<'a>) -> Self {
        let (members, faults) = match body {
            Value::Object(members) => (members.as_slice(), Vec::new()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::Array(_) => {
                (&[][..], vec![Fault::new("", "must be a JSON object")])
            }
        };
        Self { members, known: Vec::with_capacity(8), faults }
    }

    /// Notes a fault.
    pub(crate) fn refuse(&mut self, name: &str, detail: impl Into<std::borrow::Cow<'static, str>>) {
        self.faults.push(Fault::of_member(name, detail));
    }

    /// Every fault, those of members that nobody has asked for included.
    pub(crate) fn finish(mut self) -> Vec<Fault> {
        let unknown = self.members.iter().filter(|(name, _)| !self.known.contains(&name.as_ref()));
        self.faults.extend(unknown.take(FAULTS_MAX).map(|(name, _)| Fault::of_member(name, UNKNOWN)));
        self.faults
    }

    /// The member as it was sent, `null` included.
    fn find(&mut self, name: &'static str) -> Option<&'a Value<'a>> {
        self.known.push(name);
        let at = self.members.binary_search_by(|(member, _)| member_order(member, name)).ok()?;
        self.members.get(at).map(|(_, value)| value)
    }

    /// The member, where absent and `null` are the same.
    fn optional(&mut self, name: &'static str) -> Option<&'a Value<'a>> {
        self.find(name).filter(|value| **value != Value::Null)
    }

    /// The member, which must be there.
    fn required(&mut self, name: &'static str) -> Option<&'a Value<'a>> {
        let value = self.find(name);
        if value.is_none() {
            self.refuse(name, "is required");
        }
        value
    }

    fn note<T>(
        &mut self,
        name: &'static str,
        read: Option<T>,
        detail: impl Into<std::borrow::Cow<'static, str>>,
    ) -> Option<T> {
        if read.is_none() {
            self.refuse(name, detail);
        }
        read
    }

    /// A required amount.
    pub(crate) fn amount(&mut self, name: &'static str) -> Option<Amount> {
        let value = self.required(name)?;
        let amount = integer(value).and_then(Amount::new);
        self.note(
            name,
            amount,
            format!("must be a JSON integer from 1 to {MAX_MINOR_UNITS}, without fraction or exponent"),
        )
    }

    /// An optional limit of a balance.
    pub(crate) fn limit(&mut self, name: &'static str) -> Option<Limit> {
        match self.find(name) {
            None => Some(Limit::Absent),
            Some(Value::Null) => Some(Limit::None),
            Some(value) => {
                let balance = integer(value).and_then(Balance::new).map(Limit::At);
                self.note(
                    name,
                    balance,
                    format!("must be null or a JSON integer within ±{MAX_MINOR_UNITS}, without fraction or exponent"),
                )
            }
        }
    }

    /// A required currency.
    pub(crate) fn currency(&mut self, name: &'static str) -> Option<Currency> {
        let value = self.required(name)?;
        let currency = text(value).and_then(Currency::parse);
        self.note(
            name,
            currency,
            "must be the upper-case alphabetic code of an ISO 4217 currency in which money is moved",
        )
    }

    /// A required account's identifier.
    pub(crate) fn account_id(&mut self, name: &'static str) -> Option<AccountId> {
        let value = self.required(name)?;
        let id = text(value).and_then(uuid).map(AccountId);
        self.note(name, id, "must be a UUID")
    }

    /// A required idempotency key, as it is meant and not as a header spells it.
    pub(crate) fn idempotency_key(&mut self, name: &'static str) -> Option<IdempotencyKey> {
        let value = self.required(name)?;
        let key = text(value).and_then(|text| IdempotencyKey::new(text.to_owned()));
        self.note(name, key, "must be a string of 1 to 255 printable ASCII characters")
    }

    /// An optional text of at most `MAX` characters. `None` if it is faulty.
    pub(crate) fn text<const MAX: usize>(&mut self, name: &'static str) -> Option<Option<Text<MAX>>> {
        let Some(value) = self.optional(name) else { return Some(None) };
        let Some(text) = text(value) else {
            self.refuse(name, "must be a string or null");
            return None;
        };
        match Text::new(text.to_owned()) {
            Ok(text) => Some(Some(text)),
            Err(error) => {
                self.refuse(name, error.to_string());
                None
            }
        }
    }

    /// The optional member `metadata`. `None` if it is faulty.
    pub(crate) fn metadata(&mut self) -> Option<Option<Metadata>> {
        const NAME: &str = "metadata";
        let Some(value) = self.optional(NAME) else { return Some(None) };
        let Value::Object(members) = value else {
            self.refuse(NAME, "must be an object or null");
            return None;
        };
        let mut texts = BTreeMap::new();
        let mut whole = true;
        for (name, value) in members {
            if let Some(text) = text(value) {
                texts.insert(name.clone().into_owned(), text.to_owned());
            } else {
                whole = false;
                self.faults.push(Fault::new(pointer(&[NAME, name]), "must be a string"));
            }
        }
        match Metadata::new(texts) {
            Ok(metadata) => whole.then_some(Some(metadata)),
            Err(faults) => {
                self.faults.extend(faults.into_iter().map(|(name, error)| {
                    let place = name.as_deref().map_or_else(|| pointer(&[NAME]), |name| pointer(&[NAME, name]));
                    Fault::new(place, error.to_string())
                }));
                None
            }
        }
    }
}

fn text<'a>(value: &'a Value<'a>) -> Option<&'a str> {
    if let Value::Text(text) = value { Some(text) } else { None }
}

/// An integer in its one spelling: no fraction, no exponent, no minus before zero.
fn integer(value: &Value<'_>) -> Option<i64> {
    let Value::Number(text) = value else { return None };
    let digits = text.strip_prefix('-').unwrap_or(text);
    if *text == "-0" || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Reads the usual form of a UUID, 8-4-4-4-12, of any version. The other forms that libraries take (braces, `urn:`,
/// without hyphens) would be several spellings of one resource.
pub(crate) fn uuid(text: &str) -> Option<Uuid> {
    /// Characters of the usual form.
    const HYPHENATED: usize = 36;
    if text.len() == HYPHENATED { Uuid::try_parse(text).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn an_amount_is_an_integer_in_its_range_and_nothing_that_only_looks_like_one() {
        let read = |number: &str| {
            let body = format!("{{\"amount\":{number}}}");
            let value = json::parse(body.as_bytes()).unwrap();
            let mut members = Members::of(&value);
            let amount = members.amount("amount").map(Amount::minor_units);
            (amount, members.finish().into_iter().map(|fault| fault.pointer).collect::<Vec<_>>())
        };
        assert_eq!(read("1"), (Some(1), vec![]));
        assert_eq!(read("9007199254740991"), (Some(MAX_MINOR_UNITS), vec![]));
        for refused in [
            "100.0",
            "1e2",
            "1E2",
            "\"100\"",
            "-0",
            "0",
            "-1",
            "0.1",
            "1e400",
            "null",
            "true",
            "[1]",
            "{}",
            "9007199254740992",
            "9223372036854775807",
            "9223372036854775808",
            "18446744073709551616",
            "-9223372036854775809",
        ] {
            assert_eq!(read(refused), (None, vec!["/amount".to_owned()]), "{refused}");
        }
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let body = br#"{"Amount":1,"currency":"usd","metadata":{"a":1,"":"x"},"x":null}"#;
        let value = json::parse(body).unwrap();
        let mut members = Members::of(&value);
        assert_eq!(members.amount("amount"), None);
        assert_eq!(members.currency("currency"), None);
        assert_eq!(members.metadata(), None);
        let places: Vec<String> = members.finish().into_iter().map(|fault| fault.pointer).collect();
        assert_eq!(places, ["/amount", "/currency", "/metadata/a", "/metadata/", "/Amount", "/x"]);
    }

    #[test]
    fn a_uuid_has_one_form_and_any_version() {
        for taken in [
            "0198c0de-0000-7000-8000-000000000000",
            "00000000-0000-0000-0000-000000000000",
            "F47AC10B-58CC-4372-A567-0E02B2C3D479",
        ] {
            assert!(uuid(taken).is_some(), "{taken}");
        }
        for refused in [
            "",
            "0198c0de00007000800000000000000a",
            "{0198c0de-0000-7000-8000-00000000000}",
            "0198c0de-0000-7000-8000-00000000000g",
        ] {
            assert!(uuid(refused).is_none(), "{refused}");
        }
    }
}
