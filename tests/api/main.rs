//! The API as its clients meet it: real processes over HTTP, two of them on one database where it is about concurrency.

mod accepted;
mod answers;
mod client;
mod deployed;
mod faults;
mod http;
mod locks;
mod patience;
mod plans;
mod previous_version;
mod races;
mod records;
