//! The endpoint with one answer, in a process of its own, so that its CPU time is not that of the
//! client.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use serde_json::{Value, json};
use zae_limiter::{Clock, SystemClock};
use zae_limiter_dynamodb::constants;
use zae_limiter_dynamodb::records::keys as schema;
use zae_limiter_dynamodb::table::Key;

use super::{CHILDREN_MAX, NAMESPACE_ID, PARENT, REFUSING, STACK, child, limits};
use crate::keys;

/// More than any request of a row has.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// What a client of the endpoint asks to learn how much was asked of it.
const COUNTS: &str = "GET /counts HTTP/1.1\r\nhost: localhost\r\n\r\n";

// ---------------------------------------------------------------------------------- our side of it

/// A running endpoint.
pub(crate) struct Endpoint {
    process: Child,
    pub(super) url: String,
}

/// Requests an endpoint has answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) updates: u64,
    /// Everything else: a warm row causes none.
    pub(super) others: u64,
}

impl Endpoint {
    pub(super) fn start() -> Result<Endpoint> {
        let mut command = Command::new(std::env::current_exe().context("this program")?);
        let mut process = command
            .args(["child", "canned"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a child")?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("its output")?).read_line(&mut line)?;
        let url = line.trim_end().to_owned();
        ensure!(url.starts_with("http://"), "the endpoint did not start");
        Ok(Endpoint { process, url })
    }

    pub(super) fn process(&self) -> u32 {
        self.process.id()
    }
}

/// What the endpoint at `url` has answered so far.
pub(super) fn counts_at(url: &str) -> Result<Counts> {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://"))?;
    stream.write_all(COUNTS.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
    let mut numbers = body.split_whitespace().map(str::parse);
    let (Some(Ok(updates)), Some(Ok(others))) = (numbers.next(), numbers.next()) else {
        bail!("the endpoint answered {answer:?}")
    };
    Ok(Counts { updates, others })
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

// ------------------------------------------------------------------------------------- the process

/// What all connections share.
struct Shared {
    /// The answer to a take, and to one that is refused.
    granted: String,
    refused: String,
    /// What is read before the first take, by its key.
    records: HashMap<Key, Value>,
    updates: AtomicU64,
    others: AtomicU64,
}

/// Answers until standard input closes.
pub(crate) fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(std::io::stdout(), "http://{}", listener.local_addr()?)?;
    let now = SystemClock::new().now().0;
    let shared = Arc::new(Shared {
        granted: json!({ "Attributes": image(now, Balance::Half) }).to_string(),
        refused: json!({
            "__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
            "message": "The conditional request failed",
            "Item": image(now, Balance::InDebt),
        })
        .to_string(),
        records: records()?,
        updates: AtomicU64::new(0),
        others: AtomicU64::new(0),
    });
    std::thread::Builder::new().name("accept".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            // A connection that breaks is the client's business.
            let served = std::thread::Builder::new()
                .name("connection".to_owned())
                .spawn(move || converse(stream, &shared));
            drop(served);
        }
    })?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

#[derive(Clone, Copy)]
enum Balance {
    Half,
    InDebt,
}

/// A bucket as our client makes it, with what both products need to take from it at once.
fn image(now: i64, balance: Balance) -> Value {
    let entity = keys::entities(1).remove(0);
    let resource = keys::resource();
    let key = schema::bucket(NAMESPACE_ID, &entity, &resource, 0);
    let mut item = json!({
        "PK": { "S": key.pk },
        "SK": { "S": key.sk },
        "GSI2PK": { "S": schema::index::resource(NAMESPACE_ID, &resource) },
        "GSI2SK": { "S": schema::index::resource_bucket(&entity, 0) },
        "GSI3PK": { "S": schema::index::entity(NAMESPACE_ID, &entity) },
        "GSI3SK": { "S": schema::index::entity_bucket(&resource, 0) },
        "GSI4PK": { "S": NAMESPACE_ID },
        "GSI4SK": { "S": schema::index::namespace_bucket(&entity, &resource, 0) },
        "entity_id": { "S": entity.as_str() },
        "resource": { "S": resource.as_str() },
        "cascade": { "BOOL": false },
        "rf": { "N": now.to_string() },
        "shard_count": { "N": "1" },
        "lw": { "S": "AbCdEfGhIjK" },
        "ca": { "N": now.to_string() },
        "ttl": { "N": (now / 1000 + 7 * 86_400).to_string() },
    });
    let wcu = (
        "wcu",
        constants::WCU_MILLI,
        constants::WCU_MILLI,
        constants::WCU_PERIOD_MS,
        constants::WCU_MILLI / 2,
    );
    let of_limits = limits().map(|limit| {
        let params = limit.params();
        let balance = match balance {
            Balance::Half => params.capacity_milli / 2,
            Balance::InDebt => -params.capacity_milli,
        };
        (
            limit.name().to_string(),
            params.capacity_milli,
            params.refill_milli,
            params.period_ms,
            balance,
        )
    });
    let all = of_limits
        .iter()
        .map(|(name, cp, ra, rp, tk)| (name.as_str(), *cp, *ra, *rp, *tk))
        .chain([wcu]);
    for (name, cp, ra, rp, tk) in all {
        for (field, value) in [("cp", cp), ("ra", ra), ("rp", rp), ("tk", tk), ("tc", cp / 3)] {
            item[format!("b_{name}_{field}")] = json!({ "N": value.to_string() });
        }
    }
    item
}

fn records() -> Result<HashMap<Key, Value>> {
    let namespace = json!({
        "namespace_id": { "S": NAMESPACE_ID },
        "namespace_name": { "S": "default" },
        "status": { "S": "active" },
        "created_at": { "S": "2026-01-01T00:00:00Z" },
    });
    let version = json!({
        "schema_version": { "S": constants::SCHEMA_VERSION },
        "lambda_version": { "NULL": true },
        "client_min_version": { "S": "0.0.0" },
        "updated_at": { "S": "2026-01-01T00:00:00Z" },
    });
    let mut records = vec![
        (schema::version(), version),
        (schema::namespace_by_name("default"), namespace.clone()),
        (schema::namespace_by_id(NAMESPACE_ID), namespace),
        (schema::entity(NAMESPACE_ID, &PARENT.parse()?), entity(PARENT, false)),
    ];
    for number in 0..CHILDREN_MAX {
        let id = child(number);
        records.push((schema::entity(NAMESPACE_ID, &id.parse()?), entity(&id, true)));
    }
    for (key, item) in &mut records {
        item["PK"] = json!({ "S": key.pk });
        item["SK"] = json!({ "S": key.sk });
    }
    Ok(records.into_iter().collect())
}

/// The record of an entity, which cascades to the one parent or has none.
fn entity(id: &str, cascades: bool) -> Value {
    let parent = if cascades { json!({ "S": PARENT }) } else { json!({ "NULL": true }) };
    json!({
        "entity_id": { "S": id },
        "name": { "S": id },
        "parent_id": parent,
        "cascade": { "BOOL": cascades },
        "metadata": { "M": {} },
        "created_at": { "S": "2026-01-01T00:00:00Z" },
    })
}

/// Reads requests and answers them, one after the other.
fn converse(mut stream: TcpStream, shared: &Shared) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (mut buffer, mut filled) = (vec![0; REQUEST_BYTES_MAX], 0);
    // The answer to a take, and the second its date says.
    let (mut granted, mut granted_at) = (Vec::new(), 0);
    loop {
        let (head, end) = loop {
            if let Some(found) = framed(&buffer[..filled]) {
                break found;
            }
            let more = stream.read(&mut buffer[filled..]).ok()?;
            if more == 0 {
                return None;
            }
            filled += more;
        };
        let second = SystemClock::new().now().0 / 1000;
        if !contains(&buffer[..head], b".UpdateItem") {
            let (head, body) = (String::from_utf8_lossy(&buffer[..head]), &buffer[head..end]);
            stream.write_all(&response("200 OK", &other(&head, body, shared), second)).ok()?;
        } else if contains(&buffer[head..end], REFUSING.as_bytes()) {
            shared.updates.fetch_add(1, Ordering::Relaxed);
            stream.write_all(&response("400 Bad Request", &shared.refused, second)).ok()?;
        } else {
            shared.updates.fetch_add(1, Ordering::Relaxed);
            if second != granted_at {
                (granted, granted_at) = (response("200 OK", &shared.granted, second), second);
            }
            stream.write_all(&granted).ok()?;
        }
        buffer.copy_within(end..filled, 0);
        filled -= end;
    }
}

/// Where the head of the first request ends, and where the request does; `None` while it is not
/// whole.
fn framed(bytes: &[u8]) -> Option<(usize, usize)> {
    const LENGTH: &[u8] = b"content-length:";
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let length = bytes[..head]
        .windows(LENGTH.len())
        .position(|word| word.eq_ignore_ascii_case(LENGTH))
        .map_or(0, |at| {
            let digits = bytes[at + LENGTH.len()..head]
                .iter()
                .copied()
                .skip_while(|byte| *byte == b' ')
                .take_while(u8::is_ascii_digit);
            digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
        });
    (bytes.len() >= head + length).then_some((head, head + length))
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|some| some == word)
}

/// What is asked before the first take, and by us.
fn other(head: &str, body: &[u8], shared: &Shared) -> String {
    if head.starts_with("GET /counts ") {
        return format!(
            "{} {}",
            shared.updates.load(Ordering::Relaxed),
            shared.others.load(Ordering::Relaxed)
        );
    }
    shared.others.fetch_add(1, Ordering::Relaxed);
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let found = |key: &Value| {
        let (pk, sk) = (key["PK"]["S"].as_str()?, key["SK"]["S"].as_str()?);
        shared.records.get(&Key { pk: pk.to_owned(), sk: sk.to_owned().into() })
    };
    if head.contains(".BatchGetItem") {
        let keys = request["RequestItems"][STACK]["Keys"].as_array();
        let items: Vec<&Value> = keys.into_iter().flatten().filter_map(found).collect();
        return json!({ "Responses": { STACK: items }, "UnprocessedKeys": {} }).to_string();
    }
    found(&request["Key"])
        .map_or_else(|| "{}".to_owned(), |item| json!({ "Item": item }).to_string())
}

/// A whole answer, with the headers that DynamoDB sends.
fn response(status: &str, body: &str, second: i64) -> Vec<u8> {
    let date = DateTime::from_secs(second).fmt(DateTimeFormat::HttpDate).unwrap_or_default();
    format!(
        "HTTP/1.1 {status}\r\nServer: Server\r\nDate: {date}\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\
         Connection: keep-alive\r\nx-amzn-RequestId: 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ABCDEF\r\nx-amz-crc32: {}\r\n\r\n{body}",
        body.len(),
        crc32(body.as_bytes())
    )
    .into_bytes()
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xEDB8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_whole_when_its_body_is() {
        let request = b"POST / HTTP/1.1\r\nContent-Length: 3\r\nx: y\r\n\r\nabcPOST";
        assert_eq!(framed(request), Some((44, 47)));
        assert_eq!(framed(&request[..46]), None);
        assert_eq!(framed(b"GET / HTTP/1.1\r\n\r\n"), Some((18, 18)));
    }

    #[test]
    fn the_checksum_is_the_one_of_zip_files() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }
}
