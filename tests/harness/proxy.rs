//! A TCP proxy before PostgreSQL that can lose the answer to a COMMIT, and be slow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Forwards connections. Dropping it closes them.
pub struct Proxy {
    address: SocketAddr,
    to_lose: Arc<AtomicU32>,
    delay_ms: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A proxy before the server of the URL.
    pub async fn before(url: &str) -> Self {
        let (_, rest) = url.split_once('@').unwrap();
        let target: SocketAddr = rest.split('/').next().unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let to_lose = Arc::new(AtomicU32::new(0));
        let delay_ms = Arc::new(AtomicU32::new(0));
        let (lose, delay) = (Arc::clone(&to_lose), Arc::clone(&delay_ms));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, target, Arc::clone(&lose), Arc::clone(&delay)));
            }
        });
        Self { address, to_lose, delay_ms, task }
    }

    /// The URL of the database as seen through the proxy.
    pub fn url(&self, url: &str) -> String {
        let (credentials, rest) = url.split_once('@').unwrap();
        let (_, name) = rest.split_once('/').unwrap();
        format!("{credentials}@{}/{name}", self.address)
    }

    /// Lets the next COMMITs reach the server, and loses the answers with their connections.
    pub fn lose_commits(&self, count: u32) {
        self.to_lose.store(count, Ordering::SeqCst);
    }

    /// From now on each answer of the server comes later by this.
    pub fn delay(&self, by: Duration) {
        self.delay_ms.store(by.as_millis().try_into().unwrap(), Ordering::SeqCst);
    }

    /// How many answers are still to be lost.
    pub fn left_to_lose(&self) -> u32 {
        self.to_lose.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(mut client: TcpStream, target: SocketAddr, to_lose: Arc<AtomicU32>, delay_ms: Arc<AtomicU32>) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let (mut from_client, mut from_server) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(size @ 1..) = read else { return };
                let bytes = &from_client[..size];
                if server.write_all(bytes).await.is_err() {
                    return;
                }
                let commits = bytes.windows(7).any(|window| window == b"COMMIT\0");
                let lose = |left: u32| left.checked_sub(1);
                if commits && to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lose).is_ok() {
                    // The server commits and answers; the answer is read here and goes no further.
                    let _ = server.read(&mut from_server).await;
                    return;
                }
            }
            read = server.read(&mut from_server) => {
                let Ok(size @ 1..) = read else { return };
                let delay = Duration::from_millis(delay_ms.load(Ordering::SeqCst).into());
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                if client.write_all(&from_server[..size]).await.is_err() {
                    return;
                }
            }
        }
    }
}
