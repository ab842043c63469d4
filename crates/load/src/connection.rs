//! One HTTP/1.1 connection that is kept alive, with a small and strict reader of answers.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::answer::Answer;

/// How long an answer may take: twice the server's own bound.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
/// The longest answer that is read: a page of `/metrics` is the longest that is asked for.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most headers of an answer.
const HEADERS_MAX: usize = 32;

/// A connection, opened when it is needed and again after it broke.
pub(crate) struct Connection {
    address: SocketAddr,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

/// The head of an answer.
struct Head {
    status: u16,
    replayed: bool,
    closes: bool,
    head_length: usize,
    body_length: usize,
}

impl Connection {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self { address, stream: None, buffer: Vec::with_capacity(4096) }
    }

    /// Sends a request and reads its answer. After an error the connection is a new one.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> io::Result<Answer> {
        let answered = timeout(ANSWERED_WITHIN, self.try_exchange(request)).await;
        let answered = answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        if answered.is_err() {
            self.stream = None;
        }
        answered
    }

    /// Sends a request and closes the connection without waiting for the answer.
    pub(crate) async fn send_and_close(&mut self, request: &[u8]) -> io::Result<()> {
        let mut stream = self.open().await?;
        stream.write_all(request).await
    }

    async fn open(&mut self) -> io::Result<TcpStream> {
        match self.stream.take() {
            Some(stream) => Ok(stream),
            None => {
                let stream = TcpStream::connect(self.address).await?;
                stream.set_nodelay(true)?;
                Ok(stream)
            }
        }
    }

    async fn try_exchange(&mut self, request: &[u8]) -> io::Result<Answer> {
        // Taken out, so that a request that is given up half-way leaves no connection behind.
        let mut stream = self.open().await?;
        stream.write_all(request).await?;
        self.buffer.clear();
        loop {
            if let Some(head) = read_head(&self.buffer)? {
                let whole = head.head_length + head.body_length;
                if self.buffer.len() > whole {
                    return Err(invalid("more bytes than the answer has"));
                }
                if self.buffer.len() == whole {
                    let body = self.buffer.get(head.head_length..).unwrap_or_default().to_vec();
                    if !head.closes {
                        self.stream = Some(stream);
                    }
                    return Ok(Answer { status: head.status, replayed: head.replayed, body });
                }
            }
            if self.buffer.len() > ANSWER_BYTES_MAX {
                return Err(invalid("the answer is too long"));
            }
            if stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// The head of an answer, once it is whole. Its body must have a length: the API gives each one.
fn read_head(buffer: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let head_length = match response.parse(buffer) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(invalid(error)),
    };
    let mut head =
        Head { status: response.code.unwrap_or_default(), replayed: false, closes: false, head_length, body_length: 0 };
    let mut measured = false;
    for header in response.headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let length = std::str::from_utf8(header.value).ok().and_then(|text| text.parse().ok());
            head.body_length = length.filter(|_| !measured).ok_or_else(|| invalid("a bad content-length"))?;
            measured = true;
        } else if is("idempotent-replayed") {
            head.replayed = header.value == b"true";
        } else if is("connection") {
            head.closes = header.value.eq_ignore_ascii_case(b"close");
        }
    }
    if measured && head.body_length <= ANSWER_BYTES_MAX {
        Ok(Some(head))
    } else {
        Err(invalid("no fit content-length"))
    }
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_head_is_read_when_it_is_whole_and_must_measure_its_body() {
        let whole = b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\nidempotent-replayed: true\r\n\r\nabc";
        let head = read_head(whole).unwrap().unwrap();
        assert_eq!((head.status, head.replayed, head.closes), (201, true, false));
        assert_eq!((head.head_length, head.body_length), (whole.len() - 3, 3));
        assert!(read_head(&whole[..whole.len() - 4]).unwrap().is_none());
        for bad in [
            "",
            "content-length: 1\r\ncontent-length: 1\r\n",
            "content-length: -1\r\n",
            "transfer-encoding: chunked\r\n",
        ] {
            assert!(read_head(format!("HTTP/1.1 200 OK\r\n{bad}\r\n").as_bytes()).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn an_answer_in_pieces_is_whole_and_a_cut_one_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let mut request = [0; 64];
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_eq!(stream.read(&mut request).await.unwrap(), 4);
            for piece in ["HTTP/1.1 201 Created\r\ncontent-le", "ngth: 5\r\n\r\nhe", "llo"] {
                stream.write_all(piece.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
                tokio::task::yield_now().await;
            }
            assert_eq!(stream.read(&mut request).await.unwrap(), 4);
            stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 5\r\n\r\nhe").await.unwrap();
        });
        let mut connection = Connection::to(address);
        let answer = connection.exchange(b"POST").await.unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (201, b"hello".as_slice()));
        assert!(connection.stream.is_some());
        assert!(connection.exchange(b"POST").await.is_err());
        assert!(connection.stream.is_none());
        server.await.unwrap();
    }
}
