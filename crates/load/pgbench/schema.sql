-- Tables for the reference load, in a schema of their own; nothing else uses them.
DROP SCHEMA IF EXISTS load_reference CASCADE;
CREATE SCHEMA load_reference;
CREATE TABLE load_reference.accounts (
  id       uuid   PRIMARY KEY,
  currency text   NOT NULL,
  balance  bigint NOT NULL,
  version  bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);
CREATE TABLE load_reference.transfers (
  id          uuid        PRIMARY KEY,
  source      uuid        NOT NULL REFERENCES load_reference.accounts,
  destination uuid        NOT NULL REFERENCES load_reference.accounts,
  amount      bigint      NOT NULL CHECK (amount > 0),
  currency    text        NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE load_reference.postings (
  id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  transfer_id   uuid        NOT NULL,
  account_id    uuid        NOT NULL,
  amount        bigint      NOT NULL,
  balance_after bigint      NOT NULL,
  created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON load_reference.postings (account_id, id);
CREATE TABLE load_reference.idempotency_records (
  tenant_id   uuid        NOT NULL,
  key_hash    bytea       NOT NULL,
  fingerprint bytea       NOT NULL,
  status      smallint,
  body        bytea,
  created_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, key_hash)
);
CREATE TABLE load_reference.outbox (
  id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key_hash   bytea       NOT NULL,
  payload    jsonb       NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO load_reference.accounts (id, currency, balance) SELECT md5(i::text)::uuid, 'EUR', 1000000000000 FROM generate_series(1, 1000) i;
ANALYZE load_reference.accounts;
