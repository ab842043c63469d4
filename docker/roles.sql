-- Run once by the PostgreSQL image, when its volume is new: the two roles and the database of the compose demo.
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
