//! The page of a run, on this machine only, for as long as the run takes.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use zae_limiter_loadtest::{Report, html};

use crate::error::Failure;
use crate::patience::{self, Speaker};

/// Where the page is unless a port is named.
const USUAL_PORT: u16 = 8089;
/// How often the port is looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a visitor may take.
const VISIT_MAX: Duration = Duration::from_secs(2);
/// The most of a request that is read.
const REQUEST_BYTES_MAX: usize = 8_192;
/// How long the page is there after the end, so that it gets the last figures.
const LINGER: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Shown {
    report: Option<Report>,
    is_final: bool,
    is_fetched: bool,
}

/// A server of one page.
pub(crate) struct Page {
    shown: Arc<Mutex<Shown>>,
    pub(super) url: String,
    _server: Option<Speaker>,
}

impl Page {
    /// Serves on 127.0.0.1. A port that was asked for is the one; the usual one may be in use.
    pub(crate) fn start(asked: Option<u16>) -> Result<Page, Failure> {
        let bind = |port: u16| {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port))
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        };
        let port = asked.unwrap_or(USUAL_PORT);
        let listener = match asked {
            Some(port) => bind(port),
            None => bind(port).or_else(|_| bind(0)),
        };
        let listener = listener.map_err(|error| {
            Failure::usage(format!("--port {port} cannot be used: {error}"))
                .hint("choose another one, or 0 for any that is free")
        })?;
        let port = listener.local_addr().map_or(port, |address| address.port());
        let shown: Arc<Mutex<Shown>> = Arc::default();
        let seen = Arc::clone(&shown);
        let server = Speaker::start("page", move |stopped| {
            while patience::is_time(stopped, TICK) {
                while let Ok((visitor, _)) = listener.accept() {
                    // A visitor that goes away is no error.
                    let _ = answer(visitor, &seen);
                }
            }
        });
        Ok(Page { shown, url: format!("http://127.0.0.1:{port}/"), _server: server })
    }

    /// What the page shows from now on.
    pub(super) fn show(&self, report: Report, is_final: bool) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        (shown.report, shown.is_final) = (Some(report), is_final);
    }

    /// Waits until a visitor has the last figures, or for a moment.
    pub(super) async fn linger(&self, clock: &dyn zae_limiter::Clock) {
        let until = clock.monotonic() + LINGER;
        while clock.monotonic() < until {
            if self.shown.lock().unwrap_or_else(PoisonError::into_inner).is_fetched {
                return;
            }
            clock.sleep(TICK).await;
        }
    }
}

fn answer(mut visitor: TcpStream, shown: &Mutex<Shown>) -> std::io::Result<()> {
    visitor.set_nonblocking(false)?;
    visitor.set_read_timeout(Some(VISIT_MAX))?;
    visitor.set_write_timeout(Some(VISIT_MAX))?;
    let mut request = Vec::new();
    let mut part = [0; 1_024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        match visitor.read(&mut part)? {
            0 => break,
            read => request.extend_from_slice(part.get(..read).unwrap_or_default()),
        }
    }
    let request = String::from_utf8_lossy(&request);
    // Another host name is another site, which a browser was led to take us for.
    let host = request.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    });
    let host = host.map(|host| host.rsplit_once(':').map_or(host, |(name, _)| name));
    let is_ours = host.is_some_and(|name| name == "127.0.0.1" || name == "localhost");
    let (status, kind, body) = match request.split(' ').nth(1) {
        _ if !is_ours => ("403 Forbidden", "text/plain", "this machine only\n".to_owned()),
        Some("/") => ("200 OK", "text/html; charset=utf-8", html::live()),
        Some("/report.json") => {
            let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
            shown.is_fetched = shown.is_final;
            let body = json!({"final": shown.is_final, "report": shown.report});
            ("200 OK", "application/json", body.to_string())
        }
        _ => ("404 Not Found", "text/plain", "there is nothing here\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    visitor.write_all(head.as_bytes())?;
    visitor.write_all(body.as_bytes())
}
