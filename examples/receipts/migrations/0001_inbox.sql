-- What this consumer has taken in. One row for each record, whatever became of it: a record that comes again finds its row
-- and does nothing.
CREATE TABLE inbox (
    -- The header `ce_id`; the place, where a record has none.
    event_id text NOT NULL CONSTRAINT inbox_pkey PRIMARY KEY,
    -- topic/partition/offset, where the record can be looked at again.
    place text NOT NULL,
    -- Why nothing is done; null where something is.
    skipped text,
    received_at timestamptz NOT NULL DEFAULT now()
);
-- The oldest rows are deleted in this order.
CREATE INDEX inbox_received ON inbox (received_at);

-- The effect inside our own database: written in the transaction of its inbox row, so there is one for each event or none.
-- It also is the order to do the effect outside, which no transaction reaches.
CREATE TABLE receipts (
    event_id text NOT NULL CONSTRAINT receipts_pkey PRIMARY KEY
        CONSTRAINT receipts_event_taken REFERENCES inbox ON DELETE CASCADE,
    message_id text NOT NULL CONSTRAINT receipts_message_id_once UNIQUE,
    recipient text NOT NULL,
    -- The whole mail. It is composed once; every attempt sends these bytes.
    message bytea NOT NULL,
    -- sending: an attempt has begun, and whether the server took the mail is not known. After a crash it stays so until
    -- due_at, then the mail is sent again. parked: given up, a person decides.
    state text NOT NULL DEFAULT 'waiting'
        CONSTRAINT receipts_state_known CHECK (state IN ('waiting', 'sending', 'sent', 'parked')),
    attempts integer NOT NULL DEFAULT 0 CONSTRAINT receipts_attempts_counted CHECK (attempts >= 0),
    due_at timestamptz NOT NULL DEFAULT now(),
    last_error text,
    sent_at timestamptz,
    CONSTRAINT receipts_sent_has_time CHECK ((state = 'sent') = (sent_at IS NOT NULL))
);
-- What is still to be done; the many that are sent are not in it.
CREATE INDEX receipts_open ON receipts (due_at) WHERE state <> 'sent';
