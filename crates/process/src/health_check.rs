//! Asks the server of this machine whether it is ready, for health checks in an image that has nothing else to ask with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long the whole question may take: longer than `/readyz` waits for PostgreSQL, which is 2 s, and shorter than the 5 s
/// of a usual health check.
const TIMEOUT: Duration = Duration::from_secs(4);
/// The most bytes of the answer that are read; it has some hundred.
const ANSWER_MAX: u64 = 16 * 1024;

/// Asks `/readyz` of the server that listens at `listen`.
///
/// # Errors
/// A sentence, unless the answer is 200.
pub async fn check(listen: SocketAddr) -> Result<(), String> {
    let address = SocketAddr::new(reachable(listen.ip()), listen.port());
    let answer = tokio::time::timeout(TIMEOUT, ask(address))
        .await
        .map_err(|_| format!("{address} did not answer within {} s", TIMEOUT.as_secs()))?
        .map_err(|error| format!("{address}: {error}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if head.starts_with("HTTP/1.1 200 ") {
        return Ok(());
    }
    // The body tells why.
    let told = body.lines().next().or_else(|| head.lines().next()).unwrap_or("an empty answer");
    Err(format!("not ready: {told}"))
}

async fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Who listens on every address of the machine is reached on its own.
const fn reachable(ip: IpAddr) -> IpAddr {
    match (ip.is_unspecified(), ip.is_ipv4()) {
        (false, _) => ip,
        (true, true) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        (true, false) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}
