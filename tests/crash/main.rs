//! Processes that die: whatever the moment, nothing acknowledged is lost and nothing runs twice.
//!
//! The normal run kills each process twenty times. For hundreds of kills:
//! `ONCEPOST_KILLS=200 cargo test -p oncepost-tests --test crash -- --ignored`.

mod commits;
mod kills;
