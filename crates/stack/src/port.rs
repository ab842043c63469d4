//! Ports on 127.0.0.1.

use crate::{Error, Result, process};
use std::net::{Ipv4Addr, TcpListener};

/// Free ports are taken from here, below the ranges from which Linux (32768 on) and macOS (49152 on) take the ports of
/// outgoing connections. A client that reconnects to a stopped server whose port is in such a range can be given that
/// very port as its own, connects to itself, and keeps the server from coming back.
const FIRST: u16 = 15_000;
const COUNT: u16 = 15_000;

/// How many ports are tried: with half of all ports taken, all tries fail once in 2^64.
const TRIES: u32 = 64;

/// Finds a port that nobody listens on. Somebody may take it before it is used, so starts with such a port are retried.
pub(crate) fn find_free() -> Result<u16> {
    for _ in 0..TRIES {
        let [high, low] = process::random_bytes::<2>()?;
        let port = FIRST + u16::from_be_bytes([high, low]) % COUNT;
        if ensure_free(port).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::PortsExhausted { tries: TRIES })
}

/// Checks that nobody listens on the port, to name it in the error instead of leaving it to a server's log.
pub(crate) fn ensure_free(port: u16) -> Result<()> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop).map_err(|_| Error::PortTaken { port })
}
