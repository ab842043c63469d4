//! Requests as bytes, made by hand: the generator shares its machine with the server.

use std::fmt::Write as _;
use std::net::SocketAddr;

use secrecy::{ExposeSecret as _, SecretString};

use crate::accounts::AccountId;
use crate::error::{Error, Result};

/// Where requests go, and with which API key.
#[derive(Clone)]
pub(crate) struct Target {
    /// The server.
    pub(crate) address: SocketAddr,
    host: String,
    key: SecretString,
}

impl Target {
    /// Finds the host of a URL such as `http://127.0.0.1:8080`.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::Key`] and [`Error::Io`].
    pub(crate) async fn find(url: &str, key: &SecretString) -> Result<Self> {
        let bad = || Error::Url { url: url.to_owned() };
        let host = url.strip_prefix("http://").ok_or_else(bad)?.trim_end_matches('/');
        if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:-[]_".contains(&byte)) {
            return Err(bad());
        }
        let with_port = if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        if !key.expose_secret().bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::Key);
        }
        let mut found = tokio::net::lookup_host(&with_port).await.map_err(Error::io(format!("find {host}")))?;
        let address = found.next().ok_or_else(bad)?;
        Ok(Self { address, host: host.to_owned(), key: key.clone() })
    }

    /// Whether the key is one of the test environment, where faults can be asked for.
    pub(crate) fn in_test(&self) -> bool {
        self.key.expose_secret().starts_with("sk_test_")
    }

    fn head(&self, line: &str) -> String {
        format!("{line} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n", self.host, self.key.expose_secret())
    }

    /// A GET.
    pub(crate) fn get(&self, path: &str) -> Vec<u8> {
        format!("{}\r\n", self.head(&format!("GET {path}"))).into_bytes()
    }

    /// A POST of JSON under an idempotency key.
    pub(crate) fn post(&self, path: &str, key: &str, fault: Option<&str>, body: &str) -> Vec<u8> {
        let mut request = self.head(&format!("POST {path}"));
        if let Some(fault) = fault {
            // Writing to a string can't fail.
            let _ = write!(request, "Oncepost-Fault: {fault}\r\n");
        }
        let length = body.len();
        let _ = write!(
            request,
            "Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        request.into_bytes()
    }

    /// A POST of a transfer in euro cents.
    pub(crate) fn transfer(&self, transfer: &Intent, fault: Option<&str>) -> Vec<u8> {
        let Intent { key, source, destination, amount } = transfer;
        let body = format!(
            "{{\"source_account_id\":\"{source}\",\"destination_account_id\":\"{destination}\",\"amount\":{amount},\"currency\":\"EUR\"}}"
        );
        self.post("/v1/transfers", key, fault, &body)
    }
}

/// A transfer that is meant to happen once.
#[derive(Clone, Debug)]
pub(crate) struct Intent {
    /// Its idempotency key.
    pub(crate) key: String,
    /// Debited.
    pub(crate) source: AccountId,
    /// Credited.
    pub(crate) destination: AccountId,
    /// In cents.
    pub(crate) amount: u64,
}
