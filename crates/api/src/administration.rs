//! The commands for tenants, principals and API keys. Each prints one JSON object a line, for people and for programs.

use std::io::Write as _;
use std::time::Duration;

use api::config::{KeyConfig, process_variables};
use api::{FreshKey, Peppers};
use clap::{Args, Subcommand, ValueEnum};
use ledger::principal::{KeyGrant, KeyScope, KeyScopes, ListedKey, Principal, PrincipalError, Principals, Tenant};
use ledger::{Environment, Name, PrincipalId, Shard, TenantId, format_time};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use crate::Failure;

/// A command needs one session.
pub(crate) const SESSIONS: u32 = 1;
/// The longest time that an old and a new key work side by side.
const OVERLAP_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How often a key's id may be taken already before something else must be wrong: one of 62^8 ids at a time.
const ID_ATTEMPTS: usize = 3;

/// Commands on tenants.
#[derive(Subcommand)]
pub(crate) enum TenantsCommand {
    /// Creates a tenant.
    Create {
        /// A name for people, unique in the ledger.
        #[arg(value_parser = read_name)]
        name: Name,
        /// The identifier; a fresh one unless given.
        #[arg(long)]
        id: Option<Uuid>,
        /// Where the tenant lives. A new shard needs the role that owns the tables.
        #[arg(long, default_value_t = 0)]
        shard: i32,
    },
    /// Lists tenants.
    List,
}

/// Commands on principals, the service accounts of tenants.
#[derive(Subcommand)]
pub(crate) enum PrincipalsCommand {
    /// Creates a principal.
    Create {
        /// A name for people, unique in its tenant.
        #[arg(value_parser = read_name)]
        name: Name,
        /// The tenant's name or identifier.
        #[arg(long)]
        tenant: String,
        /// The identifier; a fresh one unless given.
        #[arg(long)]
        id: Option<Uuid>,
    },
    /// Lists principals.
    List {
        /// Only those of the tenant with this name or identifier.
        #[arg(long)]
        tenant: Option<String>,
    },
}

/// One side of the wall between test and live.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Side {
    /// No real money.
    Test,
    /// Real money.
    Live,
}

/// Which principal.
#[derive(Args)]
pub(crate) struct PrincipalChoice {
    /// The principal's identifier, or its name if --tenant is given.
    #[arg(long)]
    principal: String,
    /// The name or identifier of the principal's tenant.
    #[arg(long)]
    tenant: Option<String>,
}

/// Commands on API keys.
#[derive(Subcommand)]
pub(crate) enum KeysCommand {
    /// Creates a key and prints it, once.
    Create {
        #[command(flatten)]
        principal: PrincipalChoice,
        /// The environment that the key opens.
        #[arg(long, value_enum)]
        environment: Side,
        /// What the key may do, separated by commas: accounts:write, transfers:write, read. Everything unless given.
        #[arg(long, value_delimiter = ',', value_parser = read_scope)]
        scopes: Vec<KeyScope>,
        /// When the key stops working, such as 2027-01-31T12:00:00Z; never unless given.
        #[arg(long, value_parser = read_time)]
        expires_at: Option<OffsetDateTime>,
    },
    /// Lists keys. What opens doors is not stored, so it is not shown.
    List {
        /// Only those of the principal with this identifier.
        #[arg(long)]
        principal: Option<Uuid>,
    },
    /// Replaces a key by a new one, which is printed, once. The old one goes on working for a while.
    Roll {
        /// The 8 characters of id in the key, as listed.
        id: String,
        /// For how many seconds the old key goes on working, at most 604,800 (7 days).
        #[arg(long, default_value_t = 86_400, value_parser = clap::value_parser!(u64).range(0..=OVERLAP_MAX.as_secs()))]
        overlap_seconds: u64,
    },
    /// Revokes a key, within 5 seconds and for good.
    Revoke {
        /// The 8 characters of id in the key, as listed.
        id: String,
    },
}

/// Runs a command on tenants.
///
/// # Errors
/// A sentence for the person at the terminal.
pub(crate) async fn tenants(command: TenantsCommand) -> Result<(), Failure> {
    let principals = Principals::open(&process_variables().database_only()?, SESSIONS);
    let done = run_on_tenants(&principals, command).await;
    principals.close().await;
    done
}

async fn run_on_tenants(principals: &Principals, command: TenantsCommand) -> Result<(), Failure> {
    match command {
        TenantsCommand::Create { name, id, shard } => {
            let id = id.map_or_else(TenantId::fresh, TenantId);
            print(&show_tenant(&principals.create_tenant(id, &name, Shard(shard)).await?))
        }
        TenantsCommand::List => principals.tenants().await?.iter().try_for_each(|tenant| print(&show_tenant(tenant))),
    }
}

/// Runs a command on principals.
///
/// # Errors
/// A sentence for the person at the terminal.
pub(crate) async fn principals(command: PrincipalsCommand) -> Result<(), Failure> {
    let principals = Principals::open(&process_variables().database_only()?, SESSIONS);
    let done = run_on_principals(&principals, command).await;
    principals.close().await;
    done
}

async fn run_on_principals(principals: &Principals, command: PrincipalsCommand) -> Result<(), Failure> {
    match command {
        PrincipalsCommand::Create { name, tenant, id } => {
            let id = id.map_or_else(PrincipalId::fresh, PrincipalId);
            let tenant = find_tenant(principals, &tenant).await?;
            print(&show_principal(&principals.create_principal(id, tenant, &name).await?))
        }
        PrincipalsCommand::List { tenant } => {
            let tenant = match tenant {
                Some(tenant) => Some(find_tenant(principals, &tenant).await?),
                None => None,
            };
            principals.principals(tenant).await?.iter().try_for_each(|principal| print(&show_principal(principal)))
        }
    }
}

/// Runs a command on API keys.
///
/// # Errors
/// A sentence for the person at the terminal.
pub(crate) async fn keys(command: KeysCommand) -> Result<(), Failure> {
    let KeyConfig { database, peppers } = process_variables().keys()?;
    let principals = Principals::open(&database, SESSIONS);
    let done = run_on_keys(&principals, &peppers, command).await;
    principals.close().await;
    done
}

async fn run_on_keys(principals: &Principals, peppers: &Peppers, command: KeysCommand) -> Result<(), Failure> {
    match command {
        KeysCommand::Create { principal, environment, scopes, expires_at } => {
            let grant = KeyGrant {
                principal: find_principal(principals, &principal).await?,
                environment: match environment {
                    Side::Test => Environment::Test,
                    Side::Live => Environment::Live,
                },
                scopes: if scopes.is_empty() { KeyScopes::ALL } else { scopes.into_iter().collect() },
            };
            let fresh = create_key(principals, peppers, &grant, expires_at).await?;
            print(&show_fresh(&fresh, &grant))
        }
        KeysCommand::List { principal } => {
            principals.keys(principal.map(PrincipalId)).await?.iter().try_for_each(|key| print(&show_listed(key)))
        }
        KeysCommand::Roll { id, overlap_seconds } => {
            let (fresh, grant) = roll_key(principals, peppers, &id, Duration::from_secs(overlap_seconds)).await?;
            print(&show_fresh(&fresh, &grant))
        }
        KeysCommand::Revoke { id } => {
            principals.revoke_key(&id).await?;
            print(&json!({"id": id, "revoked": true}))
        }
    }
}

async fn create_key(
    principals: &Principals,
    peppers: &Peppers,
    grant: &KeyGrant,
    expires_at: Option<OffsetDateTime>,
) -> Result<FreshKey, PrincipalError> {
    let mut refused = PrincipalError::IdTaken;
    for _ in 0..ID_ATTEMPTS {
        let fresh = peppers.generate(grant.environment, expires_at);
        match principals.insert_key(grant, &fresh.stored).await {
            Ok(()) => return Ok(fresh),
            Err(PrincipalError::IdTaken) => {}
            Err(error) => {
                refused = error;
                break;
            }
        }
    }
    Err(refused)
}

/// The new key has the old one's environment, which its text must name: so the old one is looked at first.
async fn roll_key(
    principals: &Principals,
    peppers: &Peppers,
    id: &str,
    overlap: Duration,
) -> Result<(FreshKey, KeyGrant), Failure> {
    let old = principals.find_key(id).await?.ok_or(PrincipalError::KeyUnknown)?;
    let fresh = peppers.generate(old.scope.environment, old.expires_at);
    let grant = principals.roll_key(id, &fresh.stored, OffsetDateTime::now_utc() + overlap).await?;
    Ok((fresh, grant))
}

async fn find_tenant(principals: &Principals, text: &str) -> Result<TenantId, Failure> {
    if let Ok(id) = Uuid::try_parse(text) {
        return Ok(TenantId(id));
    }
    let tenant = principals.find_tenant(text).await?;
    tenant.map(|tenant| tenant.id).ok_or_else(|| Failure(format!("there is no tenant named {text}")))
}

pub(crate) async fn find_principal(principals: &Principals, choice: &PrincipalChoice) -> Result<PrincipalId, Failure> {
    let PrincipalChoice { principal, tenant } = choice;
    if let Ok(id) = Uuid::try_parse(principal) {
        return Ok(PrincipalId(id));
    }
    let Some(tenant) = tenant else {
        return Err(Failure("--tenant must be given where --principal is a name".to_owned()));
    };
    let found = principals.find_principal(find_tenant(principals, tenant).await?, principal).await?;
    found.map(|found| found.id).ok_or_else(|| Failure(format!("the tenant has no principal named {principal}")))
}

fn show_tenant(tenant: &Tenant) -> Value {
    json!({
        "id": tenant.id,
        "name": tenant.name,
        "shard": tenant.shard,
        "created_at": format_time(tenant.created_at),
    })
}

fn show_principal(principal: &Principal) -> Value {
    json!({
        "id": principal.id,
        "tenant_id": principal.tenant,
        "name": principal.name,
        "created_at": format_time(principal.created_at),
    })
}

fn show_grant(grant: &KeyGrant) -> Value {
    json!({
        "principal_id": grant.principal,
        "environment": grant.environment,
        "scopes": grant.scopes.iter().map(KeyScope::name).collect::<Vec<_>>(),
    })
}

/// The one place where a key leaves the process: its owner's terminal.
fn show_fresh(fresh: &FreshKey, grant: &KeyGrant) -> Value {
    let mut shown = show_grant(grant);
    shown["id"] = json!(fresh.stored.id);
    shown["key"] = json!(fresh.text.expose_secret());
    shown["expires_at"] = json!(fresh.stored.expires_at.map(format_time));
    shown
}

fn show_listed(key: &ListedKey) -> Value {
    let mut shown = show_grant(&key.grant);
    shown["id"] = json!(key.id);
    shown["last_four"] = json!(key.last_four);
    shown["created_at"] = json!(format_time(key.created_at));
    shown["expires_at"] = json!(key.expires_at.map(format_time));
    shown["revoked_at"] = json!(key.revoked_at.map(format_time));
    shown
}

pub(crate) fn print(value: &Value) -> Result<(), Failure> {
    writeln!(std::io::stdout().lock(), "{value}").map_err(|error| Failure(format!("nothing can be printed: {error}")))
}

fn read_name(text: &str) -> Result<Name, String> {
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    Name::new(text.to_owned()).map_err(|error| error.to_string())
}

fn read_scope(text: &str) -> Result<KeyScope, String> {
    KeyScope::parse(text).ok_or_else(|| "is not accounts:write, transfers:write or read".to_owned())
}

fn read_time(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339).map_err(|_| "is not a time such as 2027-01-31T12:00:00Z".to_owned())
}
