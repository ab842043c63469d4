-- The whole retry contract: answers that are dropped by day, work that is accepted and done later, the secrets that
-- records were made with, and how often a key was tried.

-- The first answers, in one table for each UTC day, so that a day that is past its retention is dropped at once, with no
-- row deleted and nothing to vacuum. The records stay: a late retry finds its record without an answer, and is refused.
ALTER TABLE idempotency_responses RENAME TO idempotency_responses_before;
ALTER TABLE idempotency_responses_before RENAME CONSTRAINT idempotency_responses_id TO idempotency_responses_before_id;
CREATE TABLE idempotency_responses (
  id           uuid    NOT NULL,
  shard        integer NOT NULL,
  day          date    NOT NULL,
  content_type text    NOT NULL,
  location     text,
  body         bytea   NOT NULL,
  CONSTRAINT idempotency_responses_id PRIMARY KEY (id, shard, day)
) PARTITION BY RANGE (day);

-- Makes the tables of today and of the days to come, by this server's clock. A table is made apart and attached, which makes
-- no one wait, whereas one made as a partition would lock its parent. Runs as its owner: the role that serves requests owns
-- no table.
CREATE FUNCTION add_response_days(days_ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
  today date := (now() AT TIME ZONE 'UTC')::date;
  added integer := 0;
  day date;
  name text;
BEGIN
  FOR ahead IN 0 .. least(days_ahead, 31) LOOP
    day := today + ahead;
    name := 'idempotency_responses_' || to_char(day, 'YYYYMMDD');
    CONTINUE WHEN to_regclass(name) IS NOT NULL;
    EXECUTE format('CREATE TABLE %I (LIKE idempotency_responses INCLUDING DEFAULTS INCLUDING INDEXES)', name);
    EXECUTE format('ALTER TABLE idempotency_responses ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name, day, day + 1);
    added := added + 1;
  END LOOP;
  RETURN added;
END $$;

-- Drops the table of the oldest day that is past the days to keep, by this server's clock, and never that of yesterday or
-- today. Dropping locks the parent for a moment, so it does one day at a time, and gives up rather than keep requests
-- waiting for longer than a busy batch takes; whoever called tries again.
CREATE FUNCTION drop_response_day(days_kept integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
  first_kept date := (now() AT TIME ZONE 'UTC')::date - greatest(days_kept, 1);
  name text;
BEGIN
  SELECT min(c.relname) INTO name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
  WHERE i.inhparent = 'idempotency_responses'::regclass;
  IF name IS NULL OR name >= 'idempotency_responses_' || to_char(first_kept, 'YYYYMMDD') THEN
    RETURN 0;
  END IF;
  EXECUTE format('DROP TABLE %I', name);
  RETURN 1;
END $$;

REVOKE EXECUTE ON FUNCTION add_response_days(integer), drop_response_day(integer) FROM PUBLIC;

-- The answers so far count as given today.
SELECT add_response_days(7);
INSERT INTO idempotency_responses (id, shard, day, content_type, location, body)
SELECT id, shard, (now() AT TIME ZONE 'UTC')::date, content_type, location, body FROM idempotency_responses_before;
UPDATE idempotency_records SET completed_at = now();
DROP TABLE idempotency_responses_before;

-- Work that was accepted with 202. It is found here by whichever process comes next, and its end replaces the record's
-- 202 in the same transaction, once (I3, I4). `work` is the operation as it was when it was accepted; `request_id` and
-- `endpoint` go into its final answer.
CREATE TABLE operations (
  id           uuid        NOT NULL,
  shard        integer     NOT NULL,
  tenant_id    uuid        NOT NULL,
  principal_id uuid        NOT NULL,
  environment  text        NOT NULL,
  key_hashes   bytea[]     NOT NULL,
  endpoint     text        NOT NULL,
  request_id   uuid        NOT NULL,
  work         jsonb       NOT NULL,
  status       text        NOT NULL DEFAULT 'processing',
  total        integer     NOT NULL,
  done         integer     NOT NULL DEFAULT 0,
  response_id  uuid,
  created_at   timestamptz NOT NULL,
  finished_at  timestamptz,
  CONSTRAINT operations_id PRIMARY KEY (id, shard),
  CONSTRAINT operations_environment_known CHECK (environment IN ('test', 'live')),
  CONSTRAINT operations_status_known CHECK (status IN ('processing', 'succeeded', 'failed')),
  CONSTRAINT operations_done_within_total CHECK (done BETWEEN 0 AND total),
  CONSTRAINT operations_finished_with_an_answer
    CHECK ((status = 'processing') = (finished_at IS NULL) AND (finished_at IS NULL) = (response_id IS NULL))
);
CREATE INDEX operations_unfinished ON operations (created_at, id) WHERE status = 'processing';

-- The secrets that records were ever made with, by name, each with a proof of which secret it was. A process that does not
-- have one of them would not see its records, and would run their requests again: it does not start (I3). The proof of those
-- that were in use before is added by the first process that has them.
CREATE TABLE idempotency_secrets (
  id         text        NOT NULL CONSTRAINT idempotency_secrets_id PRIMARY KEY,
  proof      bytea,
  created_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO idempotency_secrets (id) SELECT DISTINCT secret_id FROM idempotency_records;

-- Attempts beyond the first, counted in memory and written later, outside the money path. A crash loses some.
CREATE TABLE idempotency_attempts (
  key_hash   bytea       NOT NULL,
  shard      integer     NOT NULL,
  attempts   bigint      NOT NULL,
  last_at    timestamptz NOT NULL,
  CONSTRAINT idempotency_attempts_key PRIMARY KEY (key_hash, shard)
) WITH (fillfactor = 80);
