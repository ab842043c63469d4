-- The books of one ledger. Promises (I1 to I9) are explained in ARCHITECTURE.md; a constraint that holds one names it.
-- Money rows carry no foreign keys to accounts, tenants or principals: such a key locks hot rows and costs on every
-- row. The committer checks against the rows that it has locked, and `api audit` proves the result.

-- One row: the identity of this ledger. It names the relay's transactional id, so that two ledgers that share a Kafka
-- cluster never fence each other.
CREATE TABLE ledgers (
  id         uuid        NOT NULL DEFAULT gen_random_uuid() CONSTRAINT ledgers_id PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX ledgers_single ON ledgers ((true));
INSERT INTO ledgers DEFAULT VALUES;

CREATE TABLE tenants (
  id         uuid        NOT NULL CONSTRAINT tenants_id PRIMARY KEY,
  shard      integer     NOT NULL DEFAULT 0 CONSTRAINT tenants_shard_not_negative CHECK (shard >= 0),
  name       text        NOT NULL CONSTRAINT tenants_name_unique UNIQUE,
  created_at timestamptz NOT NULL DEFAULT now()
);

-- A service account of a tenant. Its keys rotate; it stays the same, so that a retry after a rotation is still a retry.
CREATE TABLE principals (
  id         uuid        NOT NULL CONSTRAINT principals_id PRIMARY KEY,
  tenant_id  uuid        NOT NULL CONSTRAINT principals_tenant_exists REFERENCES tenants,
  name       text        NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT principals_name_unique UNIQUE (tenant_id, name)
);

-- The key itself is never stored (I10): `key_mac` is HMAC-SHA256 of it under the pepper named beside it.
CREATE TABLE api_keys (
  id           text        NOT NULL CONSTRAINT api_keys_id PRIMARY KEY,
  principal_id uuid        NOT NULL CONSTRAINT api_keys_principal_exists REFERENCES principals,
  environment  text        NOT NULL CONSTRAINT api_keys_environment_known CHECK (environment IN ('test', 'live')),
  scopes       text[]      NOT NULL,
  pepper_id    text        NOT NULL,
  key_mac      bytea       NOT NULL,
  last_four    text        NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  expires_at   timestamptz,
  revoked_at   timestamptz
);
CREATE INDEX api_keys_by_principal ON api_keys (principal_id);

-- `posted` is the sum of the account's postings and `posting_count` their number (I2). Only the committer changes rows.
-- Room in each page keeps updates beside their old version, without touching an index.
CREATE TABLE accounts (
  id            uuid        NOT NULL,
  shard         integer     NOT NULL,
  tenant_id     uuid        NOT NULL,
  environment   text        NOT NULL,
  currency      text        NOT NULL,
  status        text        NOT NULL,
  name          text,
  min_balance   bigint,
  max_balance   bigint,
  posted        bigint      NOT NULL DEFAULT 0,
  held          bigint      NOT NULL DEFAULT 0,
  posting_count bigint      NOT NULL DEFAULT 0,
  metadata      jsonb,
  created_at    timestamptz NOT NULL,
  CONSTRAINT accounts_id PRIMARY KEY (id, shard),
  CONSTRAINT accounts_environment_known CHECK (environment IN ('test', 'live')),
  CONSTRAINT accounts_status_known CHECK (status IN ('open', 'frozen', 'closed')),
  CONSTRAINT accounts_limits_ordered CHECK (min_balance <= max_balance),
  CONSTRAINT accounts_posted_bounded CHECK (posted BETWEEN -9007199254740991 AND 9007199254740991),
  CONSTRAINT accounts_held_bounded CHECK (held BETWEEN 0 AND 9007199254740991),
  CONSTRAINT accounts_within_limits CHECK (posted - held >= min_balance AND posted <= max_balance)
) WITH (fillfactor = 50);
CREATE INDEX accounts_by_tenant ON accounts (tenant_id, environment, id);

-- The source is debited, the destination credited. The two sequences name the transfer's postings. Ids grow with time, so
-- one key serves a look-up by id and a tenant's list in the order of time.
CREATE TABLE transfers (
  id                     uuid        NOT NULL,
  shard                  integer     NOT NULL,
  tenant_id              uuid        NOT NULL,
  environment            text        NOT NULL,
  source_account_id      uuid        NOT NULL,
  destination_account_id uuid        NOT NULL,
  source_sequence        bigint      NOT NULL,
  destination_sequence   bigint      NOT NULL,
  amount                 bigint      NOT NULL,
  currency               text        NOT NULL,
  description            text,
  metadata               jsonb,
  created_at             timestamptz NOT NULL,
  CONSTRAINT transfers_id PRIMARY KEY (tenant_id, environment, id, shard),
  CONSTRAINT transfers_environment_known CHECK (environment IN ('test', 'live')),
  CONSTRAINT transfers_amount_positive CHECK (amount BETWEEN 1 AND 9007199254740991),
  CONSTRAINT transfers_accounts_differ CHECK (source_account_id <> destination_account_id)
);

-- One leg of a transfer: negative debits, positive credits. `sequence` counts an account's postings without a gap, and
-- `balance_after` chains them, so that a lost or altered posting shows (I2).
CREATE TABLE postings (
  account_id    uuid        NOT NULL,
  sequence      bigint      NOT NULL,
  shard         integer     NOT NULL,
  transfer_id   uuid        NOT NULL,
  amount        bigint      NOT NULL,
  balance_after bigint      NOT NULL,
  created_at    timestamptz NOT NULL,
  CONSTRAINT postings_id PRIMARY KEY (account_id, sequence, shard),
  CONSTRAINT postings_amount_not_zero CHECK (amount <> 0)
);

-- What ran under an idempotency key (I3). The primary key decides every race: whoever inserts the row owns the key.
-- `response_id` names the stored answer; it is the id of the account or transfer that was made, or one of its own if the
-- answer is a rejection.
CREATE TABLE idempotency_records (
  key_hash      bytea       NOT NULL,
  shard         integer     NOT NULL,
  secret_id     text        NOT NULL,
  principal_id  uuid        NOT NULL,
  environment   text        NOT NULL,
  operation     text        NOT NULL,
  fingerprint   bytea       NOT NULL,
  members       bytea       NOT NULL,
  status        smallint    NOT NULL,
  response_id   uuid        NOT NULL,
  completed_at  timestamptz NOT NULL,
  CONSTRAINT idempotency_records_key PRIMARY KEY (key_hash, shard),
  CONSTRAINT idempotency_records_environment_known CHECK (environment IN ('test', 'live')),
  CONSTRAINT idempotency_records_key_hash_whole CHECK (length(key_hash) = 32)
);

-- The first answer, as bytes (I4): jsonb would reorder members.
CREATE TABLE idempotency_responses (
  id           uuid    NOT NULL,
  shard        integer NOT NULL,
  content_type text    NOT NULL,
  location     text,
  body         bytea   NOT NULL,
  CONSTRAINT idempotency_responses_id PRIMARY KEY (id, shard)
);

-- One row for each shard. It is locked while positions are given out, and never updated: its versions would pile up under
-- a snapshot held open. A new epoch is a person's decision, after a restore.
CREATE TABLE streams (
  shard      integer     NOT NULL CONSTRAINT streams_shard PRIMARY KEY,
  epoch      integer     NOT NULL DEFAULT 1 CONSTRAINT streams_epoch_positive CHECK (epoch > 0),
  created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO streams (shard) VALUES (0);

-- Events in commit order, dense per shard (I7).
CREATE TABLE outbox (
  shard       integer     NOT NULL,
  position    bigint      NOT NULL,
  epoch       integer     NOT NULL,
  event_id    uuid        NOT NULL,
  event_type  text        NOT NULL,
  resource_id uuid        NOT NULL,
  tenant_id   uuid        NOT NULL,
  environment text        NOT NULL,
  key_hash    bytea       NOT NULL,
  payload     bytea       NOT NULL,
  created_at  timestamptz NOT NULL,
  CONSTRAINT outbox_position PRIMARY KEY (shard, position),
  CONSTRAINT outbox_position_positive CHECK (position > 0)
);
-- One event of a type for a resource, here where the event is born. A resource is made under one key, so this holds for
-- each key too. Ids grow with time: the index grows at its end instead of everywhere.
CREATE UNIQUE INDEX outbox_event_once ON outbox (resource_id, event_type);

-- What the relay of a shard has recorded: the Kafka cluster it publishes to, and the floor F, a position that is known to
-- be published. F moves late and only forwards; Kafka's own committed offset is the truth.
CREATE TABLE relays (
  shard            integer     NOT NULL CONSTRAINT relays_shard PRIMARY KEY,
  kafka_cluster_id text        NOT NULL,
  floor_epoch      integer,
  floor_position   bigint,
  updated_at       timestamptz NOT NULL DEFAULT now()
);
