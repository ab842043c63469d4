//! The alerts: written well, right by their own tests, and raised by real faults.

mod faults;
mod rules;
mod tape;
