//! What is told once everything serves: a line for programs, and a page for people.

use serde::Serialize;
use uuid::Uuid;

use crate::KAFKA_PORT;
use crate::seed::Seeded;

/// Everything that one needs to use the demo.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ready {
    event: &'static str,
    /// The API's URL.
    pub(crate) api: String,
    /// The shop's URL.
    pub(crate) shop: String,
    /// A URL of PostgreSQL, the superuser's where the server is private.
    pub(crate) postgres: String,
    /// Where Kafka is, if there is one.
    pub(crate) kafka: Option<String>,
    /// Keys and accounts.
    #[serde(flatten)]
    pub(crate) seeded: Seeded,
}

impl Ready {
    pub(crate) fn new(api: String, shop: String, postgres: String, kafka: Option<String>, seeded: Seeded) -> Self {
        Self { event: "ready", api, shop, postgres, kafka, seeded }
    }

    /// The page. The idempotency key is a fresh one at each start, as each start is a new intent.
    pub(crate) fn guide(&self) -> String {
        let Self { event: _, api, shop, postgres, kafka, seeded: Seeded { keys, accounts } } = self;
        let (customer, merchant) = (&accounts.test.customer, &accounts.test.merchant);
        let (live_customer, live_merchant) = (&accounts.live.customer, &accounts.live.merchant);
        let kafka_line = kafka
            .as_ref()
            .map_or_else(|| "none: events wait in the outbox".to_owned(), |kafka| format!("{kafka}, topic transfers"));
        let body = format!(
            "{{\"source_account_id\":\"{customer}\",\"destination_account_id\":\"{merchant}\",\"amount\":1250,\"currency\":\"EUR\"}}"
        );
        let events = kafka.as_ref().map_or_else(
            || "Its event waits in the outbox until the demo finds a Kafka.\n".to_owned(),
            |kafka| {
                format!(
                    "See what stands in Kafka: one event of this transfer, however often you paste, beside two of the money that the\n\
                     demo began with.\n\n{} events{}\n",
                    command(),
                    if *kafka == format!("127.0.0.1:{KAFKA_PORT}") {
                        String::new()
                    } else {
                        format!(" --brokers {kafka}")
                    }
                )
            },
        );
        format!(
            "
Shop        {shop}
            pay there, lose the answer, stop Kafka, and see the money move once
API         {api}
            {api}/docs explains it, {api}/metrics measures it
PostgreSQL  {postgres}
Kafka       {kafka_line}
Test        key {}
            accounts: customer {customer}, merchant {merchant}
Live        key {}
            accounts: customer {live_customer}, merchant {live_merchant}

Move 12.50 EUR from the customer to the merchant. Paste it again: the money has moved once, and you get the first
answer, byte for byte, with `idempotent-replayed: true`.

curl -i {api}/v1/transfers \\
  -H 'Authorization: Bearer {}' \\
  -H 'Idempotency-Key: {}' \\
  -H 'Content-Type: application/json' \\
  -d '{body}'

{events}
Ctrl-C stops everything and keeps the data.
",
            keys.test,
            keys.live,
            keys.test,
            Uuid::new_v4(),
        )
    }
}

/// How this program is called, by cargo or by its path.
fn command() -> String {
    let by_cargo = std::env::var_os("CARGO").is_some();
    match std::env::args().next() {
        Some(path) if !by_cargo => path,
        Some(_) | None if cfg!(debug_assertions) => "cargo run -q --".to_owned(),
        Some(_) | None => "cargo run -q --release --".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::{Accounts, ByEnvironment};

    fn ready(kafka: Option<&str>) -> Ready {
        let accounts = |one: &str, other: &str| Accounts { customer: one.to_owned(), merchant: other.to_owned() };
        let seeded = Seeded {
            keys: ByEnvironment { test: "sk_test_a".to_owned(), live: "sk_live_b".to_owned() },
            accounts: ByEnvironment { test: accounts("c", "d"), live: accounts("e", "f") },
        };
        let kafka = kafka.map(str::to_owned);
        let shop = "http://127.0.0.1:8081".to_owned();
        Ready::new("http://127.0.0.1:8080".to_owned(), shop, "postgres://x".to_owned(), kafka, seeded)
    }

    #[test]
    fn programs_are_told_in_one_line() {
        assert_eq!(
            serde_json::to_string(&ready(None)).unwrap(),
            "{\"event\":\"ready\",\"api\":\"http://127.0.0.1:8080\",\"shop\":\"http://127.0.0.1:8081\",\"postgres\":\"postgres://x\",\"kafka\":null,\
             \"keys\":{\"test\":\"sk_test_a\",\"live\":\"sk_live_b\"},\
             \"accounts\":{\"test\":{\"customer\":\"c\",\"merchant\":\"d\"},\"live\":{\"customer\":\"e\",\"merchant\":\"f\"}}}"
        );
    }

    #[test]
    fn people_are_told_what_to_paste() {
        let guide = ready(Some("127.0.0.1:9092")).guide();
        assert!(
            guide
                .contains("curl -i http://127.0.0.1:8080/v1/transfers \\\n  -H 'Authorization: Bearer sk_test_a' \\\n")
        );
        assert!(guide.contains("\"source_account_id\":\"c\",\"destination_account_id\":\"d\",\"amount\":1250"));
        assert!(guide.contains(" events\n"));
        assert!(ready(Some("127.0.0.1:9999")).guide().contains(" events --brokers 127.0.0.1:9999\n"));
        assert!(ready(None).guide().contains("until the demo finds a Kafka"));
    }
}
