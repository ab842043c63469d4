-- Run once by the PostgreSQL image, when its volume is new: the roles and the databases of the compose demo.
--
-- THE PASSWORDS ARE FOR THE DEMO ONLY. Everybody can read them here.
--
-- `oncepost` owns the schema: only migrations use it. `oncepost_app` is what the processes use; `api migrate --app-role`
-- gives it the rights that they need, so that no process can change or delete a posting.
CREATE ROLE oncepost LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS PASSWORD 'demo-only-owner';
CREATE ROLE oncepost_app LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS PASSWORD 'demo-only-app';

CREATE DATABASE oncepost OWNER oncepost;
REVOKE ALL ON DATABASE oncepost FROM PUBLIC;
GRANT CONNECT ON DATABASE oncepost TO oncepost_app;

-- The example consumer is another service: it has a database of its own, and nothing in the ledger's.
CREATE ROLE receipts LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS PASSWORD 'demo-only-receipts';
CREATE DATABASE receipts OWNER receipts;
REVOKE ALL ON DATABASE receipts FROM PUBLIC;
