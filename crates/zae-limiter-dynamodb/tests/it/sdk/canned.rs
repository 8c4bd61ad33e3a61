//! A tiny HTTP server that answers what the test says, so that the SDK itself makes the errors that
//! are classified.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value};

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// A whole answer.
    Answer { status: u16, body: String, date: Option<&'static str> },
    /// Headers that promise more than comes, then the connection is closed.
    Half,
    /// The request is read, then the connection is closed.
    Close,
    /// The connection is closed before anything is read.
    Slam,
    /// Silence.
    Hang,
    /// An empty answer, but silence for every update after the first.
    OneUpdate,
}

impl Reply {
    pub(crate) fn ok(body: &Value) -> Reply {
        Reply::answer(200, body.to_string())
    }

    pub(crate) fn answer(status: u16, body: impl Into<String>) -> Reply {
        Reply::Answer { status, body: body.into(), date: None }
    }

    /// An error as DynamoDB sends it.
    pub(crate) fn error(status: u16, code: &str) -> Reply {
        Reply::answer(
            status,
            format!(
                r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"told by {code}"}}"#
            ),
        )
    }
}

/// A request the server has read.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) operation: String,
    /// Whose signature it carries.
    pub(crate) access_key: String,
    pub(crate) body: Value,
}

pub(crate) struct Server {
    pub(crate) endpoint: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Every request gets the same reply.
    pub(crate) fn start(reply: Reply) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (seen, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let server =
            Server { endpoint, seen: Arc::clone(&seen), connections: Arc::clone(&connections) };
        in_thread(move || {
            for stream in listener.incoming() {
                connections.fetch_add(1, Ordering::SeqCst);
                let (stream, reply, seen) = (stream.unwrap(), reply.clone(), Arc::clone(&seen));
                in_thread(move || serve(stream, &reply, &seen));
            }
        });
        server
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn in_thread(work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().spawn(work).unwrap();
}

fn serve(mut stream: TcpStream, reply: &Reply, seen: &Mutex<Vec<Seen>>) {
    stream.set_nodelay(true).unwrap();
    if matches!(reply, Reply::Slam) {
        return;
    }
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read(&mut reader) {
        let is_update = request.operation == "UpdateItem";
        let updates = {
            let mut seen = seen.lock().unwrap();
            seen.push(request);
            seen.iter().filter(|request| request.operation == "UpdateItem").count()
        };
        let (empty, hang) = (Reply::ok(&Value::Object(Map::new())), Reply::Hang);
        let reply = match reply {
            Reply::OneUpdate if is_update && updates > 1 => &hang,
            Reply::OneUpdate => &empty,
            other => other,
        };
        let answered = match reply {
            Reply::Answer { status, body, date } => {
                let date = date.map(|date| format!("date: {date}\r\n")).unwrap_or_default();
                let head = format!(
                    "HTTP/1.1 {status} Word\r\ncontent-type: application/x-amz-json-1.0\r\n{date}content-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + body).as_bytes())
            }
            Reply::Half => {
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"Attributes\":");
                return;
            }
            Reply::Close | Reply::Slam => return,
            Reply::Hang | Reply::OneUpdate => {
                // Until the other side gives up.
                let _ = reader.read(&mut [0]);
                return;
            }
        };
        if answered.is_err() {
            return;
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<Seen> {
    let (mut operation, mut access_key, mut length) = (String::new(), String::new(), 0);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let header = line.trim_end();
        if header.is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "x-amz-target" => operation = value.rsplit('.').next().unwrap().to_owned(),
                "authorization" => {
                    access_key = value
                        .split_once("Credential=")
                        .and_then(|(_, scope)| scope.split('/').next())
                        .unwrap_or_default()
                        .to_owned();
                }
                "content-length" => length = value.parse().unwrap(),
                _ => {}
            }
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Seen { operation, access_key, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
}
