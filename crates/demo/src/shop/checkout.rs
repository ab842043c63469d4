//! Paying: the browser's request becomes the API's, under the browser's key.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;

use super::attempts::Fate;
use super::catalogue::{Order, order_number};
use super::client::{Answer, IDEMPOTENCY_KEY, Unanswered};
use super::server::Cut;
use super::{Shop, problem};

/// Pays for a basket.
///
/// The key is the browser's, because only the browser knows that two requests are one intent. The backend passes it on
/// and never makes one of its own: a key that is made here would be a new one for each attempt. It does not retry either,
/// since the browser does, and the answer goes back as it came.
pub(crate) async fn pay(State(shop): State<Shop>, headers: HeaderMap, body: Bytes) -> Response {
    let keys: Vec<HeaderValue> = headers.get_all(IDEMPOTENCY_KEY).iter().cloned().collect();
    let key = keys.first().map(HeaderValue::as_bytes).unwrap_or_default();
    let number = order_number(key.trim_ascii());
    let order = match Order::read(&body) {
        Ok(order) => order,
        Err(error) => {
            return problem(StatusCode::BAD_REQUEST, "malformed-request", "No order", &error.to_string());
        }
    };

    let attempt = Arc::new(shop.attempts().begin(&number));
    let running = Arc::clone(&attempt);
    let sender = shop.clone();
    // A task of its own: what is under way goes on when the browser leaves, as it does on a network.
    let sent = tokio::spawn(async move {
        sender.network().travel().await;
        let transfer = order.transfer(&number, sender.accounts());
        let answered = sender.client().post("/v1/transfers", keys.into_iter(), &transfer).await;
        running.replied(answered.as_ref().ok().map(Answer::reply));
        sender.network().travel().await;
        answered
    });
    match sent.await {
        Ok(Ok(answer)) if shop.network().lose_reply() => {
            attempt.end(Fate::Lost);
            cut(answer)
        }
        Ok(Ok(answer)) => {
            attempt.end(Fate::Delivered);
            pass_on(answer)
        }
        Ok(Err(Unanswered)) | Err(_) => {
            attempt.end(Fate::Delivered);
            unavailable()
        }
    }
}

/// The answer as it came.
pub(crate) fn pass_on(answer: Answer) -> Response {
    let mut response = Response::new(answer.body.into());
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
}

/// The answer that does not arrive.
fn cut(answer: Answer) -> Response {
    let mut response = pass_on(answer);
    response.extensions_mut().insert(Cut);
    response
}

/// The API has not answered: what has happened is not known here, and the same request with the same key finds out.
pub(crate) fn unavailable() -> Response {
    let mut response =
        problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Not available", "the API does not answer");
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Mutex;
    use std::time::Duration;

    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use axum::routing::post;
    use ledger::Database;
    use serde_json::{Value, json};
    use tokio::sync::Notify;
    use tower::ServiceExt as _;

    use super::*;
    use crate::seed::{Accounts, ByEnvironment, Seeded};
    use crate::shop::{Hosts, Settings};

    const BASKET: &str = r#"{"items":[{"sku":"ink","quantity":1}]}"#;

    /// What the API has received: the key and the body of each request.
    type Received = Arc<Mutex<Vec<(Vec<HeaderValue>, Value)>>>;

    /// An API that gives one answer, and the shop before it.
    async fn shop(answer: impl Fn() -> Response + Clone + Send + Sync + 'static) -> (Shop, Received) {
        shop_before(move || std::future::ready(answer())).await
    }

    async fn shop_before<F: Future<Output = Response> + Send + 'static>(
        answer: impl Fn() -> F + Clone + Send + Sync + 'static,
    ) -> (Shop, Received) {
        let received = Received::default();
        let kept = Arc::clone(&received);
        let transfers = post(move |headers: HeaderMap, body: Bytes| async move {
            assert_eq!(headers["authorization"], "Bearer sk_test_secret");
            let keys = headers.get_all(IDEMPOTENCY_KEY).iter().cloned().collect();
            kept.lock().unwrap().push((keys, serde_json::from_slice(&body).unwrap()));
            answer().await
        });
        let listener = api::listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/transfers", transfers);
        tokio::spawn(async move { axum::serve(listener, router).await });
        (before(url), received)
    }

    fn before(api: String) -> Shop {
        let accounts = || Accounts { customer: "c".to_owned(), merchant: "m".to_owned() };
        let keys = ByEnvironment { test: "sk_test_secret".to_owned(), live: String::new() };
        let seeded = Seeded { keys, accounts: ByEnvironment { test: accounts(), live: accounts() } };
        let database = Database::from_url("postgres://nobody@127.0.0.1:1/nothing").unwrap();
        let hosts = Hosts::default();
        Shop::open(Settings { api, seeded, database, brokers: None, controls: None, hosts }).unwrap()
    }

    async fn pay_with(shop: &Shop, keys: &[&str], body: &'static str) -> (Response, String) {
        let mut request =
            Request::post("/checkout").header("host", "127.0.0.1").header("content-type", "application/json");
        for key in keys {
            request = request.header(IDEMPOTENCY_KEY, *key);
        }
        let response = shop.router().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let text = to_bytes(body, 65_536).await.unwrap();
        (Response::from_parts(parts, Body::empty()), String::from_utf8(text.to_vec()).unwrap())
    }

    fn answer(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Response {
        let mut response = Response::new(body.into());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in headers {
            response.headers_mut().insert(*name, HeaderValue::from_static(value));
        }
        response
    }

    #[tokio::test]
    async fn the_browsers_key_reaches_the_api_as_it_is_and_none_is_made() {
        let (shop, received) = shop(|| answer(201, &[], "{}")).await;
        pay_with(&shop, &["the-browsers-own"], BASKET).await;
        pay_with(&shop, &[], BASKET).await;
        pay_with(&shop, &["one", "two"], BASKET).await;
        let received = received.lock().unwrap();
        assert_eq!(received[0].0, ["the-browsers-own"]);
        // What is wrong with keys is the API's to say.
        assert!(received[1].0.is_empty());
        assert_eq!(received[2].0, ["one", "two"]);
        assert_eq!(received[0].1["amount"], 1_450);
        assert_eq!(received[0].1["metadata"]["order"], order_number(b"the-browsers-own"));
    }

    #[tokio::test]
    async fn the_answer_goes_back_as_it_came() {
        let headers = [
            ("content-type", "application/problem+json"),
            ("retry-after", "7"),
            ("idempotent-replayed", "true"),
            ("location", "/v1/transfers/1"),
            ("x-request-id", "r"),
            ("set-cookie", "of=the-api"),
        ];
        let (shop, _) = shop(move || answer(422, &headers, "{\"type\" : \"/problems/x\"}\n")).await;
        let (response, body) = pay_with(&shop, &["k"], BASKET).await;
        assert_eq!((response.status().as_u16(), body.as_str()), (422, "{\"type\" : \"/problems/x\"}\n"));
        for (name, value) in &headers[..5] {
            assert_eq!(response.headers()[*name], value, "{name}");
        }
        assert!(!response.headers().contains_key("set-cookie"));
    }

    #[tokio::test]
    async fn one_answer_is_lost_after_the_api_has_given_it_and_the_next_arrives() {
        let (shop, received) = shop(|| answer(201, &[], "{}")).await;
        shop.network().set_loses_reply(true);
        let (lost, _) = pay_with(&shop, &["k"], BASKET).await;
        assert!(lost.extensions().get::<Cut>().is_some());
        let (arrived, _) = pay_with(&shop, &["k"], BASKET).await;
        assert!(arrived.extensions().get::<Cut>().is_none());
        let received = received.lock().unwrap();
        assert_eq!(received[0], received[1]);
        let told = serde_json::to_value(shop.attempts().of(&order_number(b"k"))).unwrap();
        assert_eq!([&told[0]["fate"], &told[1]["fate"]], [&json!("lost"), &json!("delivered")]);
    }

    #[tokio::test]
    async fn an_api_that_does_not_answer_is_unavailable_and_loses_no_reply() {
        // Nobody listens on this port: it was free a moment ago.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let shop = before(format!("http://{free}"));
        shop.network().set_loses_reply(true);
        let (response, body) = pay_with(&shop, &["k"], BASKET).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()[RETRY_AFTER]),
            (503, &HeaderValue::from_static("1"))
        );
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["type"], "/problems/unavailable");
        assert!(shop.network().loses_reply());
    }

    #[tokio::test]
    async fn what_is_no_order_does_not_reach_the_api() {
        let (shop, received) = shop(|| answer(201, &[], "{}")).await;
        let (response, body) = pay_with(&shop, &["k"], r#"{"items":[]}"#).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert!(body.contains("the basket is empty"));
        assert!(received.lock().unwrap().is_empty());
        assert!(shop.attempts().of(&order_number(b"k")).is_empty());
    }

    #[tokio::test]
    async fn a_browser_that_leaves_stops_nothing() {
        let (arrived, released) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (told, held) = (Arc::clone(&arrived), Arc::clone(&released));
        let (shop, _) = shop_before(move || {
            let (told, held) = (Arc::clone(&told), Arc::clone(&held));
            async move {
                told.notify_one();
                held.notified().await;
                answer(201, &[], "{}")
            }
        })
        .await;
        tokio::select! {
            _ = pay_with(&shop, &["k"], BASKET) => panic!("nothing has been answered yet"),
            () = arrived.notified() => {}
        }
        released.notify_one();
        let order = order_number(b"k");
        let settled = async {
            while serde_json::to_value(shop.attempts().of(&order)).unwrap()[0]["fate"] == "open" {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), settled).await.unwrap();
        let told = serde_json::to_value(shop.attempts().of(&order)).unwrap();
        assert_eq!((&told[0]["fate"], &told[0]["reply"]["status"]), (&json!("abandoned"), &json!(201)));
    }
}
