//! A real SMTP server on loopback, with one mailbox. The protocol is the crate mailin's, which knows nothing of the client
//! that is tried here; the sockets are ours, so that a reply can be lost.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use mailin::{Action, Handler, Response, SessionBuilder, response};

/// A mail as it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// The header `Message-ID`.
    pub message_id: String,
    /// The envelope's recipient.
    pub recipient: String,
    /// Headers and body, byte for byte.
    pub bytes: Vec<u8>,
}

/// The server. Dropping it closes it.
pub struct MailServer {
    address: SocketAddr,
    desk: Arc<Mutex<Desk>>,
    open: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

/// What all connections share.
#[derive(Default)]
struct Desk {
    deliveries: Vec<Mail>,
    refusals: Vec<(String, u16)>,
    replies_to_lose: u32,
}

impl MailServer {
    /// A server that takes every mail.
    pub fn start() -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Self { address, desk: Arc::default(), open: None };
        server.open();
        server
    }

    /// Where it serves, for `SMTP_URL`.
    pub fn url(&self) -> String {
        format!("smtp://{}", self.address)
    }

    /// Serves, at the address that it had before if it had one.
    pub fn open(&mut self) {
        let listener = TcpListener::bind(self.address).unwrap();
        self.address = listener.local_addr().unwrap();
        let (closed, desk) = (Arc::new(AtomicBool::new(false)), Arc::clone(&self.desk));
        let told = Arc::clone(&closed);
        let accept = std::thread::spawn(move || {
            while let Ok((stream, peer)) = listener.accept() {
                if told.load(Ordering::SeqCst) {
                    return;
                }
                let desk = Arc::clone(&desk);
                std::thread::spawn(move || {
                    // A client that goes away ends its conversation.
                    let _ = converse(&stream, peer.ip(), desk);
                });
            }
        });
        self.open = Some((closed, accept));
    }

    /// Takes no more connections. What it has taken stays.
    pub fn close(&mut self) {
        if let Some((closed, accept)) = self.open.take() {
            closed.store(true, Ordering::SeqCst);
            // A connection that nobody answers wakes the thread, which then drops its listener.
            let _ = TcpStream::connect(self.address);
            accept.join().unwrap();
        }
    }

    /// Answers every mail for the recipient with this code, from now on. 250 takes it again.
    pub fn answer(&self, recipient: &str, code: u16) {
        let mut desk = self.desk.lock().unwrap();
        desk.refusals.retain(|(known, _)| known != recipient);
        if code != 250 {
            desk.refusals.push((recipient.to_owned(), code));
        }
    }

    /// Takes the next mails and cuts the connection before it says so.
    pub fn lose_replies(&self, count: u32) {
        self.desk.lock().unwrap().replies_to_lose = count;
    }

    /// Every mail that was taken, repetitions included, in order.
    pub fn deliveries(&self) -> Vec<Mail> {
        self.desk.lock().unwrap().deliveries.clone()
    }

    /// What the mailbox's owner sees: of mails with the same message id the first one, as mail stores show it that honour
    /// the id. Proves on the way that a repetition is the same mail, byte for byte.
    pub fn mailbox(&self) -> Vec<Mail> {
        let mut mailbox: Vec<Mail> = Vec::new();
        for mail in self.deliveries() {
            match mailbox.iter().find(|known| known.message_id == mail.message_id) {
                Some(known) => assert_eq!(known, &mail, "another mail under the same message id"),
                None => mailbox.push(mail),
            }
        }
        mailbox
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        self.close();
    }
}

/// One connection: mailin reads the lines and says what to reply.
fn converse(stream: &TcpStream, peer: IpAddr, desk: Arc<Mutex<Desk>>) -> std::io::Result<()> {
    let lost = Arc::new(AtomicBool::new(false));
    let clerk = Clerk { desk, lost: Arc::clone(&lost), recipient: String::new(), bytes: Vec::new() };
    let mut session = SessionBuilder::new("mail.test").build(peer, clerk);
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    writer.write_all(&session.greeting().buffer()?)?;
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        let reply = session.process(&line);
        if lost.load(Ordering::SeqCst) {
            return Ok(());
        }
        writer.write_all(&reply.buffer()?)?;
        if reply.action == Action::Close {
            return Ok(());
        }
        line.clear();
    }
    Ok(())
}

/// Takes the mails of one connection.
struct Clerk {
    desk: Arc<Mutex<Desk>>,
    lost: Arc<AtomicBool>,
    recipient: String,
    bytes: Vec<u8>,
}

impl Handler for Clerk {
    fn rcpt(&mut self, recipient: &str) -> Response {
        self.recipient = recipient.to_owned();
        let desk = self.desk.lock().unwrap();
        match desk.refusals.iter().find(|(refused, _)| refused == recipient) {
            Some((_, code)) => Response::custom(*code, format!("not for {recipient}")),
            None => response::OK,
        }
    }

    fn data(&mut self, line: &[u8]) -> std::io::Result<()> {
        self.bytes.extend_from_slice(line);
        Ok(())
    }

    fn data_end(&mut self) -> Response {
        let bytes = std::mem::take(&mut self.bytes);
        let text = String::from_utf8_lossy(&bytes);
        let message_id = text.lines().find_map(|line| line.strip_prefix("Message-ID: "));
        let message_id = message_id.expect("a mail has a message id").to_owned();
        let mut desk = self.desk.lock().unwrap();
        desk.deliveries.push(Mail { message_id, recipient: self.recipient.clone(), bytes });
        if let Some(left) = desk.replies_to_lose.checked_sub(1) {
            desk.replies_to_lose = left;
            self.lost.store(true, Ordering::SeqCst);
        }
        response::OK
    }
}
