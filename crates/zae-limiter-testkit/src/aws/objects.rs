//! A server that keeps objects as S3 does: `PUT /bucket/key`, by path. It checks no signature, and
//! refuses at the test's word.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Asked, answer};

/// A running server. It ends with the process.
#[derive(Clone, Debug)]
pub struct Objects {
    endpoint: String,
    kept: Arc<Mutex<Kept>>,
}

/// An object that was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its bytes as they were sent.
    pub bytes: Vec<u8>,
    /// The headers of the request, by name in lower case.
    pub headers: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct Kept {
    objects: BTreeMap<String, Stored>,
    puts: usize,
    refused: usize,
    status: Option<&'static str>,
}

impl Objects {
    /// Starts one, empty.
    pub fn start() -> Objects {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let server = Objects { endpoint: format!("http://{address}"), kept: Arc::default() };
        let kept = Arc::clone(&server.kept);
        let serve = move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(asked) = Asked::read(&stream) else { continue };
                let (status, body) = take(&mut lock(&kept), asked);
                answer(&stream, status, "Content-Type: application/xml\r\n", &body);
            }
        };
        std::thread::Builder::new().spawn(serve).expect("a thread");
        server
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Every object, by bucket and key: `bucket/a/b`.
    pub fn all(&self) -> BTreeMap<String, Stored> {
        lock(&self.kept).objects.clone()
    }

    /// How many objects were put, those that replaced another too; and how many were refused.
    pub fn counts(&self) -> (usize, usize) {
        let kept = lock(&self.kept);
        (kept.puts, kept.refused)
    }

    /// From now on every request is answered so, as in `503 Slow Down`; served again by `None`.
    pub fn refuse(&self, status: Option<&'static str>) {
        lock(&self.kept).status = status;
    }
}

fn take(kept: &mut Kept, asked: Asked) -> (&'static str, String) {
    if let Some(status) = kept.status {
        kept.refused += 1;
        let code = if status.starts_with("503") { "SlowDown" } else { "InternalError" };
        return (status, format!("<Error><Code>{code}</Code><Message>no</Message></Error>"));
    }
    // The SDK names the operation in the query: `?x-id=PutObject`.
    let path = asked.start.strip_prefix("PUT /").and_then(|path| path.split('?').next());
    let Some(path) = path.map(decoded) else {
        kept.refused += 1;
        return ("405 Method Not Allowed", String::new());
    };
    kept.puts += 1;
    let headers = asked.headers.into_iter().collect();
    kept.objects.insert(path, Stored { bytes: asked.body, headers });
    ("200 OK", String::new())
}

/// `%3D` is `=`.
fn decoded(path: &str) -> String {
    let mut parts = path.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        text.push(char::from(code.expect("two digits")));
        text.push_str(&part[2..]);
    }
    text
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().expect("nobody panics with it")
}
