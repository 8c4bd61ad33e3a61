//! Our own local engine, which is asked to forget the stream records that are counted: its stream
//! keeps a day of them, and a developer's machine has better uses for the room.

use std::io;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::streams::StreamError;

/// What the program calls itself.
const NAME: &str = "zae-limiter-local";

/// More than any answer of it has.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// The control endpoint of an engine on this machine.
#[derive(Clone, Debug)]
pub(super) struct LocalEngine(SocketAddr);

impl LocalEngine {
    /// The engine at this address, if one of ours answers there.
    pub(super) async fn at(url: &str) -> Option<LocalEngine> {
        let engine = LocalEngine(address(url)?);
        let health = engine.exchange("GET /_zae/health", "").await.ok()?;
        (health["name"] == NAME).then_some(engine)
    }

    /// Forgets the records of a table before the one with this number.
    pub(super) async fn trim(&self, table: &str, below: &str) -> Result<u64, StreamError> {
        let body = json!({ "table": table, "below": below }).to_string();
        let answer = self.exchange("POST /_zae/trim-streams", &body).await;
        let answer = answer.map_err(|error| StreamError::Passing(error.to_string()))?;
        Ok(answer["deleted"].as_u64().unwrap_or(0))
    }

    /// One request on a connection of its own. The caller bounds how long it may take.
    async fn exchange(&self, start: &str, body: &str) -> io::Result<Value> {
        let request = format!(
            "{start} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            self.0,
            body.len()
        );
        let mut connection = TcpStream::connect(self.0).await?;
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        connection.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await?;
        let (head, body) =
            answer.split_once("\r\n\r\n").ok_or_else(|| io::Error::other("no HTTP"))?;
        match head.split(' ').nth(1) {
            Some("200") => Ok(serde_json::from_str(body)?),
            _ => Err(io::Error::other(format!("the engine answers {head:?}"))),
        }
    }
}

/// An address on this machine; nobody else is asked.
fn address(url: &str) -> Option<SocketAddr> {
    let host = url.strip_prefix("http://")?.trim_end_matches('/');
    let address: SocketAddr = host.replace("localhost", "127.0.0.1").parse().ok()?;
    address.ip().is_loopback().then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_on_this_machine_is_asked_whose_engine_it_is() {
        for here in ["http://127.0.0.1:8000", "http://localhost:8000/", "http://[::1]:8000"] {
            assert!(address(here).is_some(), "{here}");
        }
        for elsewhere in [
            "http://10.0.0.7:8000",
            "http://0.0.0.0:8000",
            "http://localhost.example.com:8000",
            "https://127.0.0.1:8000",
            "https://streams.dynamodb.eu-west-1.amazonaws.com",
        ] {
            assert_eq!(address(elsewhere), None, "{elsewhere}");
        }
    }
}
