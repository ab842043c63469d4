//! A record of the topic, read: what the inbox takes in for it. Pure, so that every kind of record can be tried.
//!
//! `openapi/asyncapi.yaml` describes the records. Whatever else stands in the topic is skipped, never stumbled over: a
//! record that stops the consumer stops all that stand behind it.

use std::collections::HashMap;

use rdkafka::message::{Headers, Message};
use serde::Deserialize;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::receipt::{Letterhead, Receipt};

/// The type of the events that lead to a receipt.
const TRANSFER_POSTED: &str = "oncepost.transfer.posted";

/// Which events lead to a receipt.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// The header `environment` that is asked for.
    pub(crate) environment: String,
    /// Older events are skipped: the inbox no longer knows whether they were handled.
    pub(crate) max_age: Duration,
    /// How a receipt is written.
    pub(crate) letterhead: Letterhead,
}

/// What the inbox takes in for one record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// What makes it the same event when it comes again: the header `ce_id`, or the place where that is missing.
    pub(crate) event_id: String,
    /// topic/partition/offset.
    pub(crate) place: String,
    /// The receipt to send, or why there is none.
    pub(crate) content: Result<Receipt, Skipped>,
}

/// Why nothing is done about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// A header or the payload is not what `openapi/asyncapi.yaml` describes.
    Unreadable,
    /// An event of a type that this consumer does nothing about.
    OtherType,
    /// An event of the other environment.
    OtherEnvironment,
    /// An event from before the time that the inbox remembers.
    TooOld,
    /// Nobody asked for a receipt.
    NoRecipient,
    /// What stands where the recipient should is not the address of a mailbox.
    BadRecipient,
}

impl Skipped {
    /// For the inbox and the log.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::OtherType => "other type",
            Self::OtherEnvironment => "other environment",
            Self::TooOld => "too old",
            Self::NoRecipient => "no recipient",
            Self::BadRecipient => "bad recipient",
        }
    }
}

/// The members of a transfer that a receipt tells. Members that it does not know are none of its business.
#[derive(Debug, Deserialize)]
pub(crate) struct Transfer {
    pub(crate) id: Uuid,
    pub(crate) amount: u64,
    pub(crate) currency: String,
    pub(crate) description: Option<String>,
    pub(crate) metadata: Option<HashMap<String, String>>,
}

impl Entry {
    /// Reads a record.
    pub(crate) fn read(record: &impl Message, selection: &Selection, now: OffsetDateTime) -> Self {
        let place = format!("{}/{}/{}", record.topic(), record.partition(), record.offset());
        let id = header(record, "ce_id").and_then(|id| Uuid::try_parse(id).ok());
        Self {
            event_id: id.map_or_else(|| place.clone(), |id| id.to_string()),
            content: id.ok_or(Skipped::Unreadable).and_then(|id| decide(record, id, selection, now)),
            place,
        }
    }
}

fn decide(record: &impl Message, id: Uuid, selection: &Selection, now: OffsetDateTime) -> Result<Receipt, Skipped> {
    if header(record, "ce_type").ok_or(Skipped::Unreadable)? != TRANSFER_POSTED {
        return Err(Skipped::OtherType);
    }
    if header(record, "environment").ok_or(Skipped::Unreadable)? != selection.environment {
        return Err(Skipped::OtherEnvironment);
    }
    let at = header(record, "ce_time").and_then(|time| OffsetDateTime::parse(time, &Rfc3339).ok());
    let at = at.ok_or(Skipped::Unreadable)?;
    if now - at > selection.max_age {
        return Err(Skipped::TooOld);
    }
    let transfer: Transfer =
        serde_json::from_slice(record.payload().unwrap_or_default()).map_err(|_| Skipped::Unreadable)?;
    selection.letterhead.compose(id, at, &transfer)
}

fn header<'a>(record: &'a impl Message, name: &str) -> Option<&'a str> {
    let headers = record.headers()?;
    let found = (0..headers.count()).map(|index| headers.get(index)).find(|header| header.key == name)?;
    std::str::from_utf8(found.value?).ok()
}

#[cfg(test)]
mod tests {
    use rdkafka::Timestamp;
    use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};
    use time::macros::datetime;

    use super::*;

    const ID: &str = "0199f3a0-5f2b-7c3e-9d52-5f1f0c2a7b11";
    const NOW: OffsetDateTime = datetime!(2026-01-02 03:05:00 UTC);
    const PAYLOAD: &str = r#"{"id":"0199f3a0-5f2b-7c3e-9d52-5f1f0c2a7b10","object":"transfer","status":"posted",
        "amount":1250,"currency":"EUR","description":"Order 1001","metadata":{"email":"ann@example.com"},"more":[1]}"#;

    fn selection() -> Selection {
        Selection {
            environment: "live".to_owned(),
            max_age: Duration::days(30),
            letterhead: Letterhead::new("Shop <receipts@shop.example>".parse().unwrap(), "email".to_owned()),
        }
    }

    /// A good record, with one header replaced, or left out.
    fn record(name: &str, value: Option<&str>, payload: &str) -> OwnedMessage {
        let good = [
            ("ce_id", ID),
            ("ce_type", TRANSFER_POSTED),
            ("ce_time", "2026-01-02T03:04:05.678901Z"),
            ("environment", "live"),
        ];
        let mut headers = OwnedHeaders::new();
        for (key, usual) in good {
            if let Some(value) = if key == name { value } else { Some(usual) } {
                headers = headers.insert(Header { key, value: Some(value) });
            }
        }
        let payload = Some(payload.as_bytes().to_vec());
        OwnedMessage::new(payload, None, "transfers".to_owned(), Timestamp::NotAvailable, 3, 17, Some(headers))
    }

    fn skipped(record: &OwnedMessage) -> Skipped {
        Entry::read(record, &selection(), NOW).content.unwrap_err()
    }

    #[test]
    fn a_posted_transfer_leads_to_a_receipt_named_by_its_event() {
        let entry = Entry::read(&record("", None, PAYLOAD), &selection(), NOW);
        assert_eq!((entry.event_id.as_str(), entry.place.as_str()), (ID, "transfers/3/17"));
        let receipt = entry.content.unwrap();
        assert_eq!(receipt.message_id, format!("<receipt.{ID}@shop.example>"));
        assert_eq!(receipt.recipient, "ann@example.com");
    }

    #[test]
    fn a_record_without_an_id_is_known_by_its_place() {
        for value in [None, Some("17"), Some("0199f3a0-5f2b-7c3e-9d52-5f1f0c2a7b11\r\nBcc: all@example.com")] {
            let entry = Entry::read(&record("ce_id", value, PAYLOAD), &selection(), NOW);
            assert_eq!(entry.event_id, "transfers/3/17");
            assert_eq!(entry.content, Err(Skipped::Unreadable));
        }
    }

    #[test]
    fn whatever_else_stands_in_the_topic_is_skipped_with_its_reason() {
        assert_eq!(skipped(&record("ce_type", None, PAYLOAD)), Skipped::Unreadable);
        assert_eq!(skipped(&record("ce_type", Some("oncepost.transfer.held"), PAYLOAD)), Skipped::OtherType);
        assert_eq!(skipped(&record("environment", Some("test"), PAYLOAD)), Skipped::OtherEnvironment);
        assert_eq!(skipped(&record("ce_time", Some("yesterday"), PAYLOAD)), Skipped::Unreadable);
        assert_eq!(skipped(&record("ce_time", Some("2025-12-03T03:04:59Z"), PAYLOAD)), Skipped::TooOld);
        for payload in ["", "{", "[]", "null", r#"{"id":1}"#, &PAYLOAD.replace("1250", "-1")] {
            assert_eq!(skipped(&record("", None, payload)), Skipped::Unreadable, "{payload}");
        }
        let other = PAYLOAD.replace("\"email\"", "\"phone\"");
        assert_eq!(skipped(&record("", None, &other)), Skipped::NoRecipient);
        assert_eq!(skipped(&record("", None, &PAYLOAD.replace("ann@", ""))), Skipped::BadRecipient);
        let none = PAYLOAD.replace(r#"{"email":"ann@example.com"}"#, "null");
        assert_eq!(skipped(&record("", None, &none)), Skipped::NoRecipient);
    }
}
