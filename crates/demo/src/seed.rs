//! What the demo moves money with: a tenant, a principal, its two keys, and in each environment three accounts.
//!
//! It can be asked for any number of times, by several processes at once. The tenant and the principal are found by their
//! names, the keys follow from a secret, and the accounts and the first money come by the API's own routes under fixed
//! idempotency keys: whoever asks again gets the first answer.

use std::time::Duration;

use api::config::{ServerConfig, process_variables};
use api::{Api, Peppers};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{Method, Request, StatusCode};
use ledger::principal::{KeyGrant, KeyScopes, PrincipalError, Principals};
use ledger::{Database, Environment, Ledger, Name, PrincipalId, Secret, Shard, TenantId};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::error::{Error, Result};
use crate::print_line;

const TENANT: &str = "demo";
const PRINCIPAL: &str = "shop";

/// The outside world, from which money enters: it has no floor.
const WORLD: Account = Account { name: "Outside world", slug: "world", min_balance: None };
const CUSTOMER: Account = Account { name: "Customer", slug: "customer", min_balance: Some(0) };
const MERCHANT: Account = Account { name: "Merchant", slug: "merchant", min_balance: Some(0) };

/// What the customer starts with, in cents: 10,000.00 EUR.
const FUNDS: i64 = 1_000_000;

/// How many keys are tried where people have revoked the demo's.
const KEYS_MAX: u32 = 16;
/// How often the API is asked again where it says 503, which means "same key again", and the pause before.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);
/// The longest answer that is read, in bytes: a page of 100 accounts with everything that clients may attach to them.
const ANSWER_BYTES: usize = 2 * 1024 * 1024;
/// The most accounts that are searched for the demo's, in pages of 100.
const PAGES_MAX: u32 = 1_000;

struct Account {
    name: &'static str,
    /// Its part in idempotency keys.
    slug: &'static str,
    min_balance: Option<i64>,
}

/// A value for each environment.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ByEnvironment<T> {
    /// No real money.
    pub(crate) test: T,
    /// Real money, if this were not a demo.
    pub(crate) live: T,
}

/// The accounts of an environment that people move money between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Accounts {
    /// Has money.
    pub(crate) customer: String,
    /// Wants it.
    pub(crate) merchant: String,
}

/// What was made, or found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Seeded {
    /// The whole API keys: they are printed, as that is what the demo is for.
    pub(crate) keys: ByEnvironment<String>,
    /// The ids.
    pub(crate) accounts: ByEnvironment<Accounts>,
}

/// The command `seed`.
pub(crate) async fn show() -> Result<()> {
    /// The line for programs.
    #[derive(Serialize)]
    struct Line {
        event: &'static str,
        #[serde(flatten)]
        seeded: Seeded,
    }
    let (seeded, _) = seed_from_environment().await?;
    print_line(&Line { event: "seeded", seeded })
}

/// Makes what is missing in the database that the environment names.
pub(crate) async fn seed_from_environment() -> Result<(Seeded, Database)> {
    match std::env::var("ONCEPOST_PROFILE").as_deref().map(str::trim) {
        Ok("demo") => {}
        Ok("production") => return Err(Error::ProductionProfile),
        Ok("") | Err(_) => return Err(Error::DemoProfileMissing),
        Ok(_) => return Err(Error::UnknownProfile),
    }
    let ServerConfig { ledger, key_pool_size, peppers, settings, .. } = process_variables().server()?;
    let database = ledger.database.clone();
    let principals = Principals::open(&database, key_pool_size);
    let ledger = Ledger::open(ledger).await?;
    let api = Api::new(ledger.clone(), principals.clone(), peppers.clone(), settings, None);
    let seeded = seed(&api, &principals, &peppers, None).await;
    ledger.close().await;
    Ok((seeded?, database))
}

/// Makes what is missing. Keys follow from `secret`, or from the newest pepper.
pub(crate) async fn seed(
    api: &Api,
    principals: &Principals,
    peppers: &Peppers,
    secret: Option<&Secret>,
) -> Result<Seeded> {
    let tenant = ensure_tenant(principals).await?;
    let principal = ensure_principal(principals, tenant).await?;
    let test = ensure_key(principals, peppers, secret, principal, Environment::Test).await?;
    let live = ensure_key(principals, peppers, secret, principal, Environment::Live).await?;
    let router = api.router();
    let accounts = ByEnvironment {
        test: Client { router: &router, key: &test, environment: Environment::Test }.ensure_accounts().await?,
        live: Client { router: &router, key: &live, environment: Environment::Live }.ensure_accounts().await?,
    };
    let shown = |key: &SecretString| key.expose_secret().to_owned();
    Ok(Seeded { keys: ByEnvironment { test: shown(&test), live: shown(&live) }, accounts })
}

fn name(text: &str) -> Result<Name> {
    Name::new(text.to_owned())
        .map_err(|error| Error::Io { doing: format!("{text} is no name"), source: std::io::Error::other(error) })
}

async fn ensure_tenant(principals: &Principals) -> Result<TenantId> {
    if let Some(found) = principals.find_tenant(TENANT).await? {
        return Ok(found.id);
    }
    match principals.create_tenant(TenantId::fresh(), &name(TENANT)?, Shard::default()).await {
        Ok(created) => Ok(created.id),
        // Another process was faster.
        Err(PrincipalError::NameTaken) => {
            let found = principals.find_tenant(TENANT).await?;
            Ok(found.ok_or(PrincipalError::TenantUnknown)?.id)
        }
        Err(error) => Err(error.into()),
    }
}

async fn ensure_principal(principals: &Principals, tenant: TenantId) -> Result<PrincipalId> {
    if let Some(found) = principals.find_principal(tenant, PRINCIPAL).await? {
        return Ok(found.id);
    }
    match principals.create_principal(PrincipalId::fresh(), tenant, &name(PRINCIPAL)?).await {
        Ok(created) => Ok(created.id),
        Err(PrincipalError::NameTaken) => {
            let found = principals.find_principal(tenant, PRINCIPAL).await?;
            Ok(found.ok_or(PrincipalError::PrincipalUnknown)?.id)
        }
        Err(error) => Err(error.into()),
    }
}

/// Finds the first key in the row that works, and stores it if it is new. Keys that people have revoked stay revoked.
async fn ensure_key(
    principals: &Principals,
    peppers: &Peppers,
    secret: Option<&Secret>,
    principal: PrincipalId,
    environment: Environment,
) -> Result<SecretString> {
    let grant = KeyGrant { principal, environment, scopes: KeyScopes::ALL };
    for number in 0..KEYS_MAX {
        let key = peppers.derive(secret, environment, number);
        match principals.insert_key(&grant, &key.stored).await {
            Ok(()) => return Ok(key.text),
            Err(PrincipalError::IdTaken) => {}
            Err(error) => return Err(error.into()),
        }
        let stored = principals.find_key(&key.stored.id).await?;
        let works = stored.is_some_and(|stored| {
            stored.scope.principal == principal
                && stored.scope.environment == environment
                && stored.mac == key.stored.mac
                && stored.revoked_at.is_none()
                && stored.expires_at.is_none()
        });
        if works {
            return Ok(key.text);
        }
    }
    Err(Error::KeysUsedUp { tried: KEYS_MAX })
}

/// The API as one of its clients sees it, without a network between.
struct Client<'a> {
    router: &'a Router,
    key: &'a SecretString,
    environment: Environment,
}

impl Client<'_> {
    async fn ensure_accounts(&self) -> Result<Accounts> {
        let world = self.ensure_account(&WORLD).await?;
        let customer = self.ensure_account(&CUSTOMER).await?;
        let merchant = self.ensure_account(&MERCHANT).await?;
        let funding = json!({
            "source_account_id": world,
            "destination_account_id": customer,
            "amount": FUNDS,
            "currency": "EUR",
            "description": "The demo's first money",
        });
        // Its id is of no interest; that it happened once is.
        self.post("fund the customer", "/v1/transfers", "fund-customer", &funding).await?;
        Ok(Accounts { customer, merchant })
    }

    async fn ensure_account(&self, account: &Account) -> Result<String> {
        let doing = format!("open the account {}", account.name);
        let body = json!({"currency": "EUR", "name": account.name, "min_balance": account.min_balance});
        match self.post(&doing, "/v1/accounts", &format!("open-{}", account.slug), &body).await? {
            Some(id) => Ok(id),
            None => self.find_account(account).await,
        }
    }

    /// Sends a POST and returns the id of what it made, now or the first time; nothing where the first answer is past its
    /// retention. Idempotency keys belong to a principal in both environments, so they name theirs.
    async fn post(&self, doing: &str, path: &str, intent: &str, body: &Value) -> Result<Option<String>> {
        let idempotency_key = format!("demo-{}-{intent}", self.environment);
        let mut attempt = 1;
        loop {
            let request = Request::post(path)
                .header("idempotency-key", &idempotency_key)
                .header(CONTENT_TYPE, "application/json")
                .header(AUTHORIZATION, self.bearer())
                .body(Body::from(body.to_string()));
            let (status, answer) = self.send(doing, request).await?;
            let id = answer["id"].as_str().map(str::to_owned);
            let again = status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::CONFLICT;
            match id {
                Some(id) if status == StatusCode::CREATED => return Ok(Some(id)),
                Some(_) | None if again && attempt < ATTEMPTS => tokio::time::sleep(PAUSE).await,
                Some(_) | None if answer["type"] == "/problems/idempotency-key-expired" => return Ok(None),
                Some(_) | None => return Err(refused(doing, status, &answer)),
            }
            attempt += 1;
        }
    }

    /// Looks for an account that was opened long ago, by its name. Others may have the name too, but none is older.
    async fn find_account(&self, account: &Account) -> Result<String> {
        let doing = format!("find the account {}", account.name);
        let mut found = None;
        let mut path = "/v1/accounts?limit=100".to_owned();
        for _ in 0..PAGES_MAX {
            let request = Request::builder()
                .method(Method::GET)
                .uri(&path)
                .header(AUTHORIZATION, self.bearer())
                .body(Body::empty());
            let (status, page) = self.send(&doing, request).await?;
            if status != StatusCode::OK {
                return Err(refused(&doing, status, &page));
            }
            // Newest first, so the oldest of a page is the last.
            let oldest = page["data"].as_array().into_iter().flatten().rfind(|listed| listed["name"] == account.name);
            found = oldest.and_then(|account| account["id"].as_str()).map(str::to_owned).or(found);
            match page["next_cursor"].as_str() {
                Some(cursor) => path = format!("/v1/accounts?limit=100&cursor={cursor}"),
                None => break,
            }
        }
        found.ok_or(Error::AccountLost { name: account.name })
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key.expose_secret())
    }

    async fn send(
        &self,
        doing: &str,
        request: std::result::Result<Request<Body>, axum::http::Error>,
    ) -> Result<(StatusCode, Value)> {
        let failed = |why: String| Error::Refused { doing: doing.to_owned(), status: 0, body: why };
        let request = request.map_err(|error| failed(error.to_string()))?;
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        let body = to_bytes(response.into_body(), ANSWER_BYTES).await.map_err(|error| failed(error.to_string()))?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }
}

fn refused(doing: &str, status: StatusCode, answer: &Value) -> Error {
    Error::Refused { doing: doing.to_owned(), status: status.as_u16(), body: answer.to_string() }
}
