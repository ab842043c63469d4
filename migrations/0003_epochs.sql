-- Where each later epoch of a shard's stream began: after a position that the outbox and Kafka agree on. A person begins one
-- when one of the two has lost events that the other holds; the relay believes no other change of epoch. Epoch 1 has no row.
CREATE TABLE epochs (
  shard          integer     NOT NULL,
  epoch          integer     NOT NULL,
  after_position bigint      NOT NULL,
  after_event_id uuid        NOT NULL,
  begun_at       timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT epochs_id PRIMARY KEY (shard, epoch),
  CONSTRAINT epochs_epoch_not_the_first CHECK (epoch > 1),
  CONSTRAINT epochs_position_not_negative CHECK (after_position >= 0)
);

-- Begins an epoch after a position. The events behind it become the epoch's first: they were not published, or what was is void.
-- The stream's row is locked first, as by every batch that gives positions out, so none gives the old epoch to an event
-- once this one has begun. Runs as its owner: the role that works changes no event. Position 0 is before the first event
-- and has the nil id.
CREATE FUNCTION begin_epoch(of_shard integer, new_epoch integer, after bigint, after_event uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '10s' AS $$
BEGIN
  UPDATE streams SET epoch = new_epoch WHERE shard = of_shard AND epoch < new_epoch;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'epoch % of shard % has begun before', new_epoch, of_shard;
  END IF;
  IF after > 0 AND NOT EXISTS (SELECT FROM outbox WHERE shard = of_shard AND position = after AND event_id = after_event) THEN
    RAISE EXCEPTION 'the outbox of shard % does not hold event % at position %', of_shard, after_event, after;
  END IF;
  INSERT INTO epochs (shard, epoch, after_position, after_event_id) VALUES (of_shard, new_epoch, after, after_event);
  UPDATE outbox SET epoch = new_epoch WHERE shard = of_shard AND position > after;
END $$;

REVOKE EXECUTE ON FUNCTION begin_epoch(integer, integer, bigint, uuid) FROM PUBLIC;
