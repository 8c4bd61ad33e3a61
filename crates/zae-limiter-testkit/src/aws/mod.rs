//! The parts of AWS around a function, small and on this machine: what starts the function and
//! hands it events, and where it keeps objects. Like an engine, everything here panics when it
//! fails.

pub mod lambda;
pub mod objects;
pub mod replies;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// A request, on a connection of its own.
struct Asked {
    /// Method and path.
    start: String,
    /// By name in lower case.
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Asked {
    /// None when nobody asks anything after all.
    fn read(stream: &TcpStream) -> Option<Asked> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let start = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
        let mut headers = Vec::new();
        loop {
            line.clear();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let mut asked = Asked { start, headers, body: Vec::new() };
        let length = asked.header("content-length").map_or(Ok(0), str::parse).ok()?;
        asked.body = vec![0; length];
        reader.read_exact(&mut asked.body).ok()?;
        Some(asked)
    }

    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Answers, and ends the connection. Whoever has gone needs no answer.
fn answer(mut stream: &TcpStream, status: &str, headers: &str, body: &str) {
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"
    );
    let _ = stream.write_all(text.as_bytes());
}
