//! The record that carries an event: CloudEvents 1.0 in binary mode, described in `openapi/asyncapi.yaml`.

use ledger::format_time;
use ledger::outbox::Event;
use rdkafka::message::{Header, Headers, OwnedHeaders};
use uuid::Uuid;

use crate::position::Position;

/// How many headers a record has, that of its trace included.
const HEADERS: usize = 13;

/// What all records of a shard share.
pub(crate) struct Letterhead {
    source: String,
    shard: String,
}

/// The record's key: the transfer's id as text.
pub(crate) fn key(event: &Event) -> String {
    event.resource_id.to_string()
}

impl Letterhead {
    pub(crate) fn new(ledger: Uuid, shard: i32) -> Self {
        Self { source: format!("/oncepost/{ledger}"), shard: shard.to_string() }
    }

    /// The headers of an event's record; `traceparent` (W3C Trace Context) where the event is traced.
    pub(crate) fn headers(&self, event: &Event, traceparent: Option<&str>) -> OwnedHeaders {
        let mut headers = OwnedHeaders::new_with_capacity(HEADERS);
        let mut add = |key: &str, value: &str| {
            let written = std::mem::take(&mut headers).insert(Header { key, value: Some(value) });
            headers = written;
        };
        // One buffer serves every value that has to be written first: librdkafka copies it.
        let mut buffer = [0; uuid::fmt::Hyphenated::LENGTH];
        add("ce_specversion", "1.0");
        add("ce_id", event.event_id.hyphenated().encode_lower(&mut buffer));
        add("ce_source", &self.source);
        add("ce_type", &format!("oncepost.{}", event.event_type));
        add("ce_time", &format_time(event.created_at));
        add("content-type", "application/json");
        add("tenant-id", event.tenant.0.hyphenated().encode_lower(&mut buffer));
        add("environment", event.environment.name());
        add("shard", &self.shard);
        add("epoch", &event.epoch.to_string());
        add("position", &event.position.to_string());
        add("idempotency-key-hash", &event.key_hash.to_string());
        if let Some(traceparent) = traceparent {
            add("traceparent", traceparent);
        }
        headers
    }

    /// The position that a record of this ledger's shard carries; `None` for a record of anyone else.
    pub(crate) fn position(&self, headers: &impl Headers) -> Option<Position> {
        let (mut source, mut shard, mut epoch, mut position, mut event) = (None, None, None, None, None);
        for header in headers.iter() {
            let slot = match header.key {
                "ce_source" => &mut source,
                "shard" => &mut shard,
                "epoch" => &mut epoch,
                "position" => &mut position,
                "ce_id" => &mut event,
                _ => continue,
            };
            *slot = header.value.and_then(|value| std::str::from_utf8(value).ok());
        }
        if source? != self.source || shard? != self.shard {
            return None;
        }
        Some(Position { epoch: epoch?.parse().ok()?, position: position?.parse().ok()?, event: event?.parse().ok()? })
    }
}

/// The partition of a key among so many, as `murmur2_random` and the Java client choose it; `None` if there are none.
pub(crate) fn partition(key: &str, partitions: usize) -> Option<usize> {
    let hash = usize::try_from(murmur2(key.as_bytes()) & 0x7fff_ffff).ok()?;
    hash.checked_rem(partitions)
}

/// MurmurHash2 with Kafka's seed (org.apache.kafka.common.utils.Utils.murmur2).
fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    // The length enters modulo 2^32, as everything here is.
    let mut hash = SEED ^ u32::try_from(data.len() & 0xffff_ffff).unwrap_or(0);
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use ledger::{Environment, KeyHash, TenantId};
    use time::macros::datetime;

    use super::*;

    fn event() -> Event {
        Event {
            epoch: 2,
            position: 41,
            event_id: Uuid::from_u128(1),
            event_type: "transfer.posted".to_owned(),
            resource_id: Uuid::from_u128(2),
            tenant: TenantId(Uuid::from_u128(3)),
            environment: Environment::Test,
            key_hash: KeyHash([0x0a; 32]),
            payload: b"{}".to_vec(),
            traceparent: None,
            created_at: datetime!(2026-01-02 03:04:05.000006 UTC),
        }
    }

    #[test]
    fn a_record_carries_every_header() {
        let ledger = Uuid::from_u128(9);
        let headers = Letterhead::new(ledger, 0).headers(&event(), Some("00-1-2-01"));
        let text: Vec<(String, String)> = headers
            .iter()
            .map(|header| (header.key.to_owned(), String::from_utf8(header.value.unwrap().to_vec()).unwrap()))
            .collect();
        let expected = [
            ("ce_specversion", "1.0"),
            ("ce_id", "00000000-0000-0000-0000-000000000001"),
            ("ce_source", "/oncepost/00000000-0000-0000-0000-000000000009"),
            ("ce_type", "oncepost.transfer.posted"),
            ("ce_time", "2026-01-02T03:04:05.000006Z"),
            ("content-type", "application/json"),
            ("tenant-id", "00000000-0000-0000-0000-000000000003"),
            ("environment", "test"),
            ("shard", "0"),
            ("epoch", "2"),
            ("position", "41"),
            ("idempotency-key-hash", "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"),
            ("traceparent", "00-1-2-01"),
        ];
        assert_eq!((text.len(), expected.len()), (HEADERS, HEADERS));
        for ((name, value), (expected_name, expected_value)) in text.iter().zip(expected) {
            assert_eq!((name.as_str(), value.as_str()), (expected_name, expected_value));
        }
    }

    #[test]
    fn a_record_tells_its_position_to_its_own_shard_only() {
        let ledger = Uuid::from_u128(9);
        let headers = Letterhead::new(ledger, 0).headers(&event(), Some("00-1-2-01"));
        let position = Position { epoch: 2, position: 41, event: Uuid::from_u128(1) };
        assert_eq!(Letterhead::new(ledger, 0).position(&headers), Some(position));
        assert_eq!(Letterhead::new(ledger, 1).position(&headers), None);
        assert_eq!(Letterhead::new(Uuid::from_u128(8), 0).position(&headers), None);
        assert_eq!(Letterhead::new(ledger, 0).position(&OwnedHeaders::new()), None);
    }

    #[test]
    fn keys_are_hashed_as_the_java_client_hashes_them() {
        // From Kafka's own UtilsTest.
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
        }
    }
}
