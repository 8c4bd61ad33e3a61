//! The control endpoint: what a test or the `zae-limiter local` commands ask of the server itself.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};

use crate::storage::Storage;
use crate::sweep;

/// The start of every path that is ours and not the engine's.
pub(crate) const PREFIX: &str = "/_zae/";

/// What somebody reads who asks for something else.
const PATHS: &str =
    "see GET /_zae/health, POST /_zae/sweep-ttl, POST /_zae/trim-streams, POST /_zae/shutdown";

/// The connections that the front found to be for us.
pub(crate) struct Connections(pub(crate) mpsc::Receiver<(TcpStream, SocketAddr)>);

impl axum::serve::Listener for Connections {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        match self.0.recv().await {
            Some(connection) => connection,
            // The front is gone, and with it the process in a moment.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The endpoint; `shutdown` is told when somebody asks the server to stop.
pub(crate) fn router(storage: Arc<Storage>, shutdown: Arc<Notify>) -> Router {
    Router::new()
        .route("/_zae/health", get(health))
        .route("/_zae/sweep-ttl", post(sweep_ttl))
        .route("/_zae/trim-streams", post(trim_streams))
        .route("/_zae/shutdown", post(move || std::future::ready(stop(&shutdown))))
        .fallback(async || problem(StatusCode::NOT_FOUND, PATHS))
        .layer(middleware::from_fn(guard))
        .with_state(storage)
}

/// Refuses browsers, where any page could call, and ends the connection with its answer: the next
/// request on it might be for the engine.
async fn guard(request: Request, next: Next) -> Response {
    let mut response = match request.headers().get(header::ORIGIN) {
        Some(_) => problem(StatusCode::FORBIDDEN, "not for browsers"),
        None => next.run(request).await,
    };
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    response
}

async fn health(State(storage): State<Arc<Storage>>) -> Response {
    answer(storage, |storage| {
        let tables = storage.with(tables)?;
        Ok(json!({
            "name": env!("CARGO_PKG_NAME"),
            "version": env!("CARGO_PKG_VERSION"),
            "engine": format!("dynoxide {}", dynoxide::PRODUCT_VERSION),
            "pid": std::process::id(),
            "data": if storage.is_file() { "file" } else { "memory" },
            "tables": tables,
        }))
    })
    .await
}

/// The tables there are. The engine lists one before it has made it, and after it has dropped it:
/// those are left out.
fn tables(own: &dynoxide::storage::Storage) -> Result<Vec<Value>> {
    let mut tables = Vec::new();
    for name in own.list_table_names()? {
        match own.count_items(&name) {
            Ok(items) => tables.push(json!({"name": name, "items": items})),
            Err(_) if !exists(own, &name)? => {}
            // Made between the two questions.
            Err(_) => tables.push(json!({"name": name, "items": own.count_items(&name)?})),
        }
    }
    Ok(tables)
}

fn exists(own: &dynoxide::storage::Storage, name: &str) -> Result<bool> {
    let found = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?1";
    Ok(own.conn().query_row(found, [name], |row| row.get::<_, i64>(0))? > 0)
}

async fn sweep_ttl(State(storage): State<Arc<Storage>>, body: String) -> Response {
    let now = match seconds(&body, "now") {
        Ok(now) => now.unwrap_or_else(sweep::now_seconds),
        Err(error) => return problem(StatusCode::BAD_REQUEST, &format!("{error:#}")),
    };
    answer(storage, move |storage| {
        let tables = storage.with(|own| sweep::sweep_ttl(own, now))?;
        Ok(json!({"now": now, "deleted": tables.values().sum::<usize>(), "tables": tables}))
    })
    .await
}

async fn trim_streams(State(storage): State<Arc<Storage>>, body: String) -> Response {
    let trim = match trim(&body) {
        Ok(trim) => trim,
        Err(error) => return problem(StatusCode::BAD_REQUEST, &format!("{error:#}")),
    };
    answer(storage, move |storage| match trim {
        Trim::Before(before) => {
            let deleted = storage.with(|own| sweep::trim_streams(own, before))?;
            Ok(json!({"before": before, "deleted": deleted}))
        }
        Trim::Table { table, below } => {
            let deleted = storage.with(|own| sweep::trim_table(own, &table, &below))?;
            Ok(json!({"table": table, "below": below, "deleted": deleted}))
        }
    })
    .await
}

/// Which stream records are forgotten.
#[derive(Debug, PartialEq)]
enum Trim {
    /// Those made before this, in seconds since 1970, or all of them.
    Before(Option<u64>),
    /// Those of one table that come before the one with this sequence number: who has read them
    /// needs them no more.
    Table { table: String, below: String },
}

fn trim(body: &str) -> Result<Trim> {
    let members: Map<String, Value> = serde_json::from_str(body).unwrap_or_default();
    if !members.contains_key("table") {
        return Ok(Trim::Before(seconds(body, "before")?));
    }
    let text = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_owned);
    match (text("table"), text("below"), members.len()) {
        (Some(table), Some(below), 2) => Ok(Trim::Table { table, below }),
        _ => anyhow::bail!(r#"expected {{"table": name, "below": sequence number}}"#),
    }
}

/// The same as SIGTERM, for those who have no signals. The answer is among what is finished first.
fn stop(shutdown: &Notify) -> Response {
    shutdown.notify_one();
    reply(StatusCode::OK, &json!({"stopping": true, "pid": std::process::id()}))
}

/// The one member an optional body may have, in seconds since 1970.
fn seconds(body: &str, name: &str) -> Result<Option<u64>> {
    if body.trim().is_empty() {
        return Ok(None);
    }
    let wanted = || format!(r#"expected nothing or {{"{name}": seconds since 1970}}"#);
    let mut members: Map<String, Value> = serde_json::from_str(body).with_context(wanted)?;
    let value = members.remove(name);
    anyhow::ensure!(members.is_empty(), wanted());
    value.map(|value| value.as_u64().with_context(wanted)).transpose()
}

/// Runs `work` where it may block.
async fn answer(
    storage: Arc<Storage>,
    work: impl FnOnce(&Storage) -> Result<Value> + Send + 'static,
) -> Response {
    let result = tokio::task::spawn_blocking(move || work(&storage)).await;
    match result.map_err(anyhow::Error::from).and_then(|result| result) {
        Ok(value) => reply(StatusCode::OK, &value),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error:#}")),
    }
}

fn problem(status: StatusCode, message: &str) -> Response {
    reply(status, &json!({"error": message}))
}

fn reply(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{value}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trim_is_by_time_or_of_one_table() {
        assert_eq!(trim("").unwrap(), Trim::Before(None));
        assert_eq!(trim(r#"{"before": 5}"#).unwrap(), Trim::Before(Some(5)));
        let of_table = Trim::Table { table: "t".into(), below: "7".into() };
        assert_eq!(trim(r#"{"table": "t", "below": "7"}"#).unwrap(), of_table);
        for wrong in [r#"{"table": "t"}"#, r#"{"table": "t", "below": 7}"#, r#"{"below": "7"}"#] {
            assert!(trim(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_optional_body_has_one_member() {
        assert_eq!(seconds("", "now").unwrap(), None);
        assert_eq!(seconds("{}", "now").unwrap(), None);
        assert_eq!(seconds(r#"{"now": 5}"#, "now").unwrap(), Some(5));
        for wrong in ["5", "{", r#"{"now": -1}"#, r#"{"now": "5"}"#, r#"{"nwo": 5}"#] {
            assert!(
                format!("{:#}", seconds(wrong, "now").unwrap_err()).contains("seconds since 1970"),
                "{wrong}"
            );
        }
    }
}
