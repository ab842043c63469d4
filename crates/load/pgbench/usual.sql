-- The usual way to make a transfer once: a transaction of nine statements between BEGIN and COMMIT's own, without HTTP. The key is
-- recorded, both accounts are locked in one order, both balances change, transfer, postings and event are written, and the
-- record gets its answer.
\set source random(1, 1000)
\set destination random(1, 1000)
\set key random(1, 1000000000000000)
BEGIN;
INSERT INTO load_reference.idempotency_records (tenant_id, key_hash, fingerprint) VALUES (md5('tenant')::uuid, sha256((:key)::text::bytea), sha256('request')) ON CONFLICT DO NOTHING;
SELECT id, currency, balance, version FROM load_reference.accounts WHERE id IN (md5((:source)::text)::uuid, md5((:destination)::text)::uuid) ORDER BY id FOR UPDATE;
UPDATE load_reference.accounts SET balance = balance - 5, version = version + 1 WHERE id = md5((:source)::text)::uuid;
UPDATE load_reference.accounts SET balance = balance + 5, version = version + 1 WHERE id = md5((:destination)::text)::uuid;
INSERT INTO load_reference.transfers (id, source, destination, amount, currency) VALUES (gen_random_uuid(), md5((:source)::text)::uuid, md5((:destination)::text)::uuid, 5, 'EUR');
INSERT INTO load_reference.postings (transfer_id, account_id, amount, balance_after) VALUES (gen_random_uuid(), md5((:source)::text)::uuid, -5, 0), (gen_random_uuid(), md5((:destination)::text)::uuid, 5, 0);
INSERT INTO load_reference.outbox (key_hash, payload) VALUES (sha256((:key)::text::bytea), jsonb_build_object('id', gen_random_uuid(), 'amount', 5, 'currency', 'EUR'));
UPDATE load_reference.idempotency_records SET status = 201, body = '{"id":"00000000-0000-0000-0000-000000000000","amount":5,"currency":"EUR","status":"posted"}' WHERE tenant_id = md5('tenant')::uuid AND key_hash = sha256((:key)::text::bytea);
COMMIT;
