-- What operators see: the audits that were run, and the trace that an event belongs to.

-- One row for each audit that ran to its end, by whichever process. `findings` counts the broken rows by promise, such as
-- {"I2": 1}; it is empty where the books are right.
CREATE TABLE audits (
  id          uuid        NOT NULL CONSTRAINT audits_id PRIMARY KEY,
  started_at  timestamptz NOT NULL,
  finished_at timestamptz NOT NULL,
  findings    jsonb       NOT NULL,
  CONSTRAINT audits_end_after_they_began CHECK (finished_at >= started_at)
);
CREATE INDEX audits_by_end ON audits (finished_at);

-- The W3C trace context of the request that made the event, where the request was traced.
ALTER TABLE outbox ADD COLUMN traceparent text;
