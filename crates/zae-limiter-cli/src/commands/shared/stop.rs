//! Ending a command that goes on until it is told to end.

use std::io::Read as _;
use std::pin::pin;
use std::thread::Builder;

use anyhow::Context as _;
use futures_util::future::{Either, select};
use tokio::sync::oneshot;

/// Is over when somebody wants the process to end: by a signal, or by the end of its supervisor.
pub(crate) fn wanted(with_supervisor: bool) -> anyhow::Result<impl Future<Output = ()>> {
    let signalled = signals().context("signals cannot be watched")?;
    let closed = with_supervisor.then(stdin_closed).transpose()?;
    Ok(async move {
        let closed = async {
            match closed {
                Some(closed) => drop(closed.await),
                None => std::future::pending().await,
            }
        };
        match select(pin!(signalled), pin!(closed)).await {
            Either::Left(_) | Either::Right(_) => {}
        }
    })
}

#[cfg(unix)]
fn signals() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        select(pin!(interrupt.recv()), pin!(terminate.recv())).await;
    })
}

#[cfg(not(unix))]
fn signals() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    })
}

/// Is over when nobody holds the other end of standard input any more. A thread of its own waits,
/// and ends with the process.
fn stdin_closed() -> anyhow::Result<oneshot::Receiver<()>> {
    let (closed, is_closed) = oneshot::channel();
    let wait = move || {
        let mut stdin = std::io::stdin().lock();
        let mut byte = [0];
        while matches!(stdin.read(&mut byte), Ok(1..)) {}
        // Nobody waits any more: the work has ended by itself.
        let _ = closed.send(());
    };
    Builder::new().name("stdin".into()).spawn(wait).context("no thread for standard input")?;
    Ok(is_closed)
}
