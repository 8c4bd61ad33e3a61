//! What the engine is asked, on its control endpoint: one HTTP request on a connection of its own,
//! to this machine only.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::NAME;

/// How long a connection to this machine may take.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long the engine may be silent. It answers in milliseconds, also a busy one: this is for one
/// that hangs.
const SILENCE_MAX: Duration = Duration::from_secs(4);
/// More than a thousand tables need.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// What the engine says about itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Health {
    name: String,
    /// The version of the program.
    pub(crate) version: String,
    /// The database engine inside, and its version.
    pub(crate) engine: String,
    /// Its process.
    pub(crate) pid: u32,
    /// What is in it.
    pub(crate) tables: Vec<TableForm>,
}

/// A table of the engine.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct TableForm {
    pub(crate) name: String,
    pub(crate) items: u64,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// Nobody listens.
    Nobody,
    /// Somebody listens and says nothing, or nothing sensible.
    Odd(String),
}

/// How the engine on this port is.
pub(super) fn health(port: u16) -> Result<Health, Silence> {
    let health: Health = serde_json::from_str(&exchange(port, "GET /_zae/health")?)
        .map_err(|error| Silence::Odd(format!("it answers in other words: {error}")))?;
    if health.name == NAME {
        Ok(health)
    } else {
        Err(Silence::Odd(format!("{} answers there", health.name)))
    }
}

/// Asks the engine on this port to stop. It answers first, and finishes what is under way.
pub(super) fn shutdown(port: u16) -> Result<(), Silence> {
    exchange(port, "POST /_zae/shutdown").map(drop)
}

/// The body of a successful answer.
fn exchange(port: u16, start: &str) -> Result<String, Silence> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut connection =
        TcpStream::connect_timeout(&address, CONNECT_MAX).map_err(|error| match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Silence::Odd(error.to_string()),
            _ => Silence::Nobody,
        })?;
    let request = format!(
        "{start} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    let mut answer = Vec::new();
    let read = connection
        .set_read_timeout(Some(SILENCE_MAX))
        .and_then(|()| connection.set_write_timeout(Some(SILENCE_MAX)))
        .and_then(|()| connection.write_all(request.as_bytes()))
        .and_then(|()| connection.take(ANSWER_BYTES_MAX).read_to_end(&mut answer));
    read.map_err(|error| match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            Silence::Odd(format!("it says nothing for {}s", SILENCE_MAX.as_secs()))
        }
        _ => Silence::Odd(error.to_string()),
    })?;
    body(&String::from_utf8_lossy(&answer)).map_err(Silence::Odd)
}

fn body(answer: &str) -> Result<String, String> {
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("the answer is no HTTP")?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        status => Err(format!("it answers with status {}", status.unwrap_or("none"))),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::Builder;

    use super::*;

    /// The port of somebody who answers one request with this.
    fn somebody(answer: &'static str) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer_once = move || {
            let (mut connection, _) = listener.accept().unwrap();
            let _ = connection
                .read(&mut [0; 1024])
                .and_then(|_| connection.write_all(answer.as_bytes()));
        };
        Builder::new().spawn(answer_once).unwrap();
        port
    }

    #[test]
    fn its_answer_is_read() {
        let port = somebody(
            "HTTP/1.1 200 OK\r\n\r\n{\"name\":\"zae-limiter-local\",\"version\":\"1\",\"engine\":\"d 2\",\"pid\":7,\
             \"data\":\"file\",\"tables\":[{\"name\":\"t\",\"items\":3}]}\n",
        );
        let health = health(port).unwrap();
        assert_eq!((health.pid, health.version.as_str(), health.engine.as_str()), (7, "1", "d 2"));
        assert_eq!(health.tables, [TableForm { name: "t".into(), items: 3 }]);
    }

    #[test]
    fn another_server_is_not_taken_for_it() {
        for answer in [
            "",
            "220 mail.example.org ESMTP\r\n",
            "HTTP/1.1 404 Not Found\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\n\r\n<html>",
            "HTTP/1.1 200 OK\r\n\r\n{\"name\":\"other\",\"version\":\"1\",\"engine\":\"\",\"pid\":7,\"tables\":[]}",
        ] {
            assert!(matches!(health(somebody(answer)), Err(Silence::Odd(_))), "{answer:?}");
        }
    }

    #[test]
    fn nobody_is_nobody() {
        let free =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        assert_eq!(health(free), Err(Silence::Nobody));
        assert_eq!(shutdown(free), Err(Silence::Nobody));
    }
}
