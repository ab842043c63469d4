//! Who may use the shop: its own page. Its backend acts without a login, so that any page that a browser has open could
//! pay through it, or stop Kafka, if it answered to more.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::problem;

/// What the page may load: its own files, and nothing from anyone else. It needs no more.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// Names under which the shop may be asked for, besides localhost and addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(Arc<[String]>);

impl Hosts {
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self(names.into())
    }

    /// A page of another site can have its own name resolved to this machine, and is then of the same origin; it can't do
    /// that with an address, or with localhost.
    fn know(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost")
            || address.parse::<IpAddr>().is_ok()
            || self.0.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Lets the shop's own page through, and tells browsers what it may do.
pub(crate) async fn admit(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&hosts, request.method(), request.headers()) {
        Some(why) => problem(StatusCode::FORBIDDEN, "forbidden", "Not for this page", why),
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    let fixed: [(HeaderName, &'static str); 4] = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Files change with the program, and answers at any time.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache"));
    response
}

fn refusal(hosts: &Hosts, method: &Method, headers: &HeaderMap) -> Option<&'static str> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(HOST).unwrap_or_default();
    if !hosts.know(host) {
        return Some("the shop is not known by this name; --host makes it known");
    }
    if method == Method::GET || method == Method::HEAD {
        return None;
    }
    // A form of another site can send a POST, but neither with this type nor from this origin.
    if text(CONTENT_TYPE).is_none_or(|value| !value.starts_with("application/json")) {
        return Some("a request must have the type application/json");
    }
    let own = |origin: &str| origin.split_once("://").is_some_and(|(_, authority)| authority == host);
    (!text(ORIGIN).is_none_or(own)).then_some("the request comes from another site's page")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(host: &str, method: Method, headers: &[(HeaderName, &str)]) -> bool {
        let hosts = Hosts::new(vec!["shop.test".to_owned()]);
        let mut map = HeaderMap::new();
        map.insert(HOST, HeaderValue::try_from(host).unwrap());
        for (name, value) in headers {
            map.insert(name, HeaderValue::try_from(*value).unwrap());
        }
        refusal(&hosts, &method, &map).is_some()
    }

    #[test]
    fn the_shop_answers_to_its_names_only() {
        for own in ["127.0.0.1:8081", "localhost:8081", "LOCALHOST", "[::1]:8081", "192.0.2.7", "shop.test:80"] {
            assert!(!refused(own, Method::GET, &[]), "{own}");
        }
        for other in ["evil.example", "localhost.evil.example:8081", "127.0.0.1.evil.example", "shop.test.example", ""]
        {
            assert!(refused(other, Method::GET, &[]), "{other}");
        }
    }

    #[test]
    fn a_post_comes_from_the_shops_own_page() {
        let json = (CONTENT_TYPE, "application/json");
        let host = "127.0.0.1:8081";
        assert!(!refused(host, Method::POST, std::slice::from_ref(&json)));
        assert!(!refused(host, Method::POST, &[json.clone(), (ORIGIN, "http://127.0.0.1:8081")]));
        assert!(refused(host, Method::POST, &[]));
        assert!(refused(host, Method::POST, &[(CONTENT_TYPE, "text/plain")]));
        for origin in ["http://evil.example", "http://127.0.0.1:9999", "null"] {
            assert!(refused(host, Method::POST, &[json.clone(), (ORIGIN, origin)]), "{origin}");
        }
    }
}
