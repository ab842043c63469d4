//! The API as its clients meet it: real processes over HTTP, two of them on one database where it is about concurrency.

mod answers;
mod locks;
mod plans;
mod races;
