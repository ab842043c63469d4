//! A private PostgreSQL with a ledger in it, and the owner of an account or two.

use ledger::principal::{KeyGrant, KeyScopes, Principals};
use ledger::{Audit, Database, Environment, Name, PrincipalId, Shard, TenantId};
use secrecy::{ExposeSecret, SecretBox};
use serde_json::{Value, json};
use sqlx::postgres::{PgPool, PgPoolOptions};
use stack::Postgres;

use crate::client::Client;
use crate::process::{Ended, Process, relay_environment, run};
use crate::until;

/// What every process of a test hashes idempotency keys with.
pub const SECRETS: &str = "test:0123456789abcdef0123456789abcdef";
/// What every process of a test hashes API keys with.
pub const PEPPERS: &str = "test:fedcba9876543210fedcba9876543210";

/// A ledger on a server of its own.
pub struct Books {
    postgres: Postgres,
    /// The superuser's URL.
    pub url: String,
    /// For the test's own questions.
    pub pool: PgPool,
    /// A tenant with a principal and keys for both environments.
    pub owner: Owner,
}

/// A tenant with a principal of its own and a key in each environment.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The tenant.
    pub tenant: TenantId,
    /// Its principal.
    pub principal: PrincipalId,
    /// The principal's key in `test`.
    pub test: String,
    /// The principal's key in `live`.
    pub live: String,
}

/// The id of an account that a test has opened.
pub type Account = String;

impl Books {
    /// Starts a server, migrates it and makes an owner.
    pub async fn open() -> Self {
        let postgres = Postgres::temporary().await.unwrap();
        let url = postgres.url();
        let pool = PgPoolOptions::new().max_connections(8).connect(&url).await.unwrap();
        Database::from_url(&url).unwrap().migrate(None).await.unwrap();
        let owner = new_owner(&url).await;
        Self { postgres, url, pool, owner }
    }

    /// Another tenant with a principal and keys.
    pub async fn another_owner(&self) -> Owner {
        new_owner(&self.url).await
    }

    /// Another principal of the same tenant, with keys.
    pub async fn another_principal(&self, of: &Owner) -> Owner {
        let principals = Principals::open(&Database::from_url(&self.url).unwrap(), 1);
        new_principal(&principals, of.tenant).await
    }

    /// Keys of a principal that stands in the books already.
    pub async fn keys_of(&self, tenant: TenantId, principal: PrincipalId) -> Owner {
        let principals = Principals::open(&Database::from_url(&self.url).unwrap(), 1);
        new_keys(&principals, tenant, principal).await
    }

    /// The server, for stopping it under the processes.
    pub fn postgres(&mut self) -> &mut Postgres {
        &mut self.postgres
    }

    /// Starts the API on these books.
    pub async fn api(&self) -> Process {
        self.api_with(&[]).await
    }

    /// Starts the API with more in its environment.
    pub async fn api_with(&self, environment: &[(&str, &str)]) -> Process {
        Process::api(&self.url, SECRETS, PEPPERS, environment).await
    }

    /// Runs a command of a binary on these books to its end, with something on its stdin.
    pub async fn command(&self, name: &str, arguments: &[&str], stdin: &str) -> Ended {
        self.command_with(name, arguments, stdin, &[]).await
    }

    /// The same, with more in its environment.
    pub async fn command_with(
        &self,
        name: &str,
        arguments: &[&str],
        stdin: &str,
        environment: &[(&str, &str)],
    ) -> Ended {
        let own = [("DATABASE_URL", &*self.url), ("IDEMPOTENCY_SECRETS", SECRETS), ("API_KEY_PEPPERS", PEPPERS)];
        run(name, arguments, stdin, &[&own, environment].concat()).await
    }

    /// Starts a relay on these books.
    pub fn relay_with(&self, brokers: &str, environment: &[(&str, &str)]) -> Process {
        Process::relay(&self.url, brokers, environment)
    }

    /// Runs a command of the relay to its end, such as `status`.
    pub async fn relay_command(&self, brokers: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Ended {
        let environment = [&relay_environment(&self.url, brokers), environment].concat();
        run("relay", arguments, "", &environment).await
    }

    /// Opens an account; `floor` is its `min_balance`.
    pub async fn account(&self, client: &Client, floor: Option<i64>) -> Account {
        let body = json!({"currency": "EUR", "min_balance": floor});
        let reply = client.post("/v1/accounts", &client.fresh_key(), &body).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.json()["id"].as_str().unwrap().to_owned()
    }

    /// Opens an account with floor 0 that holds `amount`, paid by `from`.
    pub async fn funded(&self, client: &Client, from: &Account, amount: i64) -> Account {
        let account = self.account(client, Some(0)).await;
        let reply = client.transfer(&client.fresh_key(), from, &account, amount).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        account
    }

    /// The number that a query counts.
    pub async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&self.pool).await.unwrap()
    }

    /// The posted balance of an account.
    pub async fn posted(&self, account: &Account) -> i64 {
        let query = "SELECT posted FROM accounts WHERE id = $1::uuid";
        sqlx::query_scalar(query).bind(account).fetch_one(&self.pool).await.unwrap()
    }

    /// Locks an account's row in a session of its own, as a person with psql might, until it is dropped.
    pub async fn lock(&self, account: &Account) -> sqlx::Transaction<'static, sqlx::Postgres> {
        let mut session = self.pool.begin().await.unwrap();
        let query = "SELECT FROM accounts WHERE id = $1::uuid FOR UPDATE";
        sqlx::query(query).bind(account).execute(&mut *session).await.unwrap();
        session
    }

    /// Ends a test of money: the books balance (I1, I2), each effect has one key and one event (I3, I7), nothing crosses
    /// (I9), and no session of ours is left inside a transaction.
    pub async fn finish(mut self) {
        self.check().await;
        self.pool.close().await;
        self.postgres.stop().await.unwrap();
    }

    /// What [`Books::finish`] proves, for tests that go on.
    pub async fn check(&self) {
        let open =
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'oncepost%' AND state LIKE 'idle in%'";
        until("every transaction to end", async || self.count(open).await == 0).await;
        let findings = Audit::run(&Database::from_url(&self.url).unwrap()).await.unwrap();
        assert!(findings.is_empty(), "{findings:#?}");
        let transfers = self.count("SELECT count(*) FROM transfers").await;
        assert_eq!(self.count("SELECT count(*) FROM outbox").await, transfers, "one event for each transfer");
        let lost = "SELECT count(*) FROM idempotency_records r LEFT JOIN idempotency_responses a ON a.id = r.response_id \
                    WHERE a.id IS NULL AND r.completed_at > now() - interval '1 day'";
        assert_eq!(self.count(lost).await, 0, "each record has its answer");
    }
}

async fn new_owner(url: &str) -> Owner {
    let principals = Principals::open(&Database::from_url(url).unwrap(), 1);
    let id = TenantId::fresh();
    let name = Name::new(format!("tenant {id}")).unwrap();
    let tenant = principals.create_tenant(id, &name, Shard(0)).await.unwrap();
    new_principal(&principals, tenant.id).await
}

async fn new_principal(principals: &Principals, tenant: TenantId) -> Owner {
    let id = PrincipalId::fresh();
    let name = Name::new(format!("principal {id}")).unwrap();
    let principal = principals.create_principal(id, tenant, &name).await.unwrap().id;
    new_keys(principals, tenant, principal).await
}

async fn new_keys(principals: &Principals, tenant: TenantId, principal: PrincipalId) -> Owner {
    let peppers = api::Peppers::parse(&SecretBox::new(PEPPERS.into())).unwrap();
    let mut keys = Vec::new();
    for environment in [Environment::Test, Environment::Live] {
        let key = peppers.generate(environment, None);
        let grant = KeyGrant { principal, environment, scopes: KeyScopes::ALL };
        principals.insert_key(&grant, &key.stored).await.unwrap();
        keys.push(key.text.expose_secret().to_owned());
    }
    Owner { tenant, principal, live: keys.pop().unwrap(), test: keys.pop().unwrap() }
}

/// A transfer's body.
pub(crate) fn transfer(source: &Account, destination: &Account, amount: i64) -> Value {
    json!({"source_account_id": source, "destination_account_id": destination, "amount": amount, "currency": "EUR"})
}
