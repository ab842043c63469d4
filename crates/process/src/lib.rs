//! What every process of Oncepost has, whatever it is for: its configuration, a log, metrics, traces, a health check and an end.

pub mod environment;
pub mod health_check;
pub mod log;
pub mod recorder;
mod stop;
pub mod traces;

pub use stop::stop_signal;
