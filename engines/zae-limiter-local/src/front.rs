//! One port for the engine's server and for our control endpoint.
//!
//! The engine serves a listener of its own and shows neither its routes nor its dispatch, so its
//! listener is a private one on loopback, and this front passes bytes on. It looks at the first of
//! them only: a connection is either the engine's or ours, to its end. Passing bytes costs 8 % of
//! the engine's throughput, forwarding requests as HTTP 35 % (measured).

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::control::PREFIX;

/// A client that sends less than a request line's start in this time gets the engine.
const STUTTER_MAX: u32 = 200;
const STUTTER_PAUSE: Duration = Duration::from_millis(5);

/// After an accept failed, for lack of file descriptors mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts for ever.
pub(crate) async fn accept(
    listener: TcpListener,
    engine: SocketAddr,
    control: mpsc::Sender<(TcpStream, SocketAddr)>,
) {
    loop {
        match listener.accept().await {
            Ok((connection, peer)) => {
                tokio::spawn(serve(connection, peer, engine, control.clone()));
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// A failure ends this connection, which is all its peer needs to know.
async fn serve(
    mut connection: TcpStream,
    peer: SocketAddr,
    engine: SocketAddr,
    control: mpsc::Sender<(TcpStream, SocketAddr)>,
) {
    let _ = connection.set_nodelay(true);
    if is_control(&connection).await {
        let _ = control.send((connection, peer)).await;
        return;
    }
    if let Ok(mut upstream) = TcpStream::connect(engine).await {
        let _ = upstream.set_nodelay(true);
        let _ = copy_bidirectional(&mut connection, &mut upstream).await;
    }
}

async fn is_control(connection: &TcpStream) -> bool {
    let mut start = [0; "POST ".len() + PREFIX.len()];
    for _ in 0..STUTTER_MAX {
        match connection.peek(&mut start).await {
            Ok(0) | Err(_) => return false,
            Ok(length) => match starts_as_control(&start[..length]) {
                Some(known) => return known,
                None => tokio::time::sleep(STUTTER_PAUSE).await,
            },
        }
    }
    false
}

/// None until there is enough to tell.
fn starts_as_control(start: &[u8]) -> Option<bool> {
    let mut undecided = false;
    for method in ["GET ", "POST "] {
        let wanted = [method.as_bytes(), PREFIX.as_bytes()].concat();
        if start.starts_with(&wanted) {
            return Some(true);
        }
        undecided |= wanted.starts_with(start);
    }
    if undecided { None } else { Some(false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_whose_a_connection_is() {
        for ours in ["GET /_zae/health", "GET /_zae/", "POST /_zae/x"] {
            assert_eq!(starts_as_control(ours.as_bytes()), Some(true), "{ours}");
        }
        for theirs in ["POST / HTTP", "GET / HTTP/1", "GET /_zaf", "PUT /_zae/", "\x16\x03\x01"] {
            assert_eq!(starts_as_control(theirs.as_bytes()), Some(false), "{theirs}");
        }
        for short in ["G", "POST ", "POST /_za"] {
            assert_eq!(starts_as_control(short.as_bytes()), None, "{short}");
        }
    }
}
