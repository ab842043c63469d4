//! What those who run the service see: its metrics, its log, its audits and the commands for whoever is on call.

mod audits;
mod commands;
mod log;
mod metrics;
mod traces;
