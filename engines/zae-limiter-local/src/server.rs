//! The server from its first listener to its last answer.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::control::{self, Connections};
use crate::front;
use crate::options::Options;
use crate::storage::Storage;
use crate::sweep;

/// How long requests that are under way may take to finish after the signal to stop.
const FINISH_MAX: Duration = Duration::from_secs(5);

/// Control connections waiting to be served.
const CONTROL_QUEUE_MAX: usize = 64;

/// A server that listens and does not serve yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    storage: Arc<Storage>,
    sweep_every: Option<Duration>,
}

impl Server {
    /// Opens the data and the port, in this order: whoever can connect will be served.
    pub async fn bind(options: &Options) -> Result<Server> {
        let storage = match &options.data {
            Some(path) => Storage::file(path)?,
            None => Storage::memory()?,
        };
        let wanted = SocketAddr::new(options.host, options.port);
        let listener = TcpListener::bind(wanted)
            .await
            .with_context(|| format!("cannot listen on {wanted}; choose another --port"))?;
        let address = listener.local_addr()?;
        if let Some(path) = &options.port_file {
            write_whole(path, &format!("{address}\n"))
                .with_context(|| format!("--port-file {}", path.display()))?;
        }
        Ok(Server {
            listener,
            address,
            storage: Arc::new(storage),
            sweep_every: options.sweep_every,
        })
    }

    /// Where it listens, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, or until the control endpoint is asked to stop, then finishes what is
    /// under way.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        let private = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let engine = private.local_addr()?;
        let (stop_engine, engine_stopped) = oneshot::channel::<()>();
        let serve =
            dynoxide::server::serve_with_shutdown(private, self.storage.database(), async {
                let _ = engine_stopped.await;
            });
        let serve = tokio::spawn(serve);

        let (ours, connections) = mpsc::channel(CONTROL_QUEUE_MAX);
        let (stop_control, control_stopped) = oneshot::channel::<()>();
        let asked = Arc::new(Notify::new());
        let router = control::router(Arc::clone(&self.storage), Arc::clone(&asked));
        let control = axum::serve(Connections(connections), router).with_graceful_shutdown(async {
            let _ = control_stopped.await;
        });
        let control = tokio::spawn(async { drop(control.await) });
        let sweep = tokio::spawn(sweep_regularly(Arc::clone(&self.storage), self.sweep_every));

        tokio::select! {
            () = front::accept(self.listener, engine, ours) => {}
            () = stop => {}
            () = asked.notified() => {}
        }
        sweep.abort();
        let _ = (stop_engine.send(()), stop_control.send(()));
        let finish = async {
            let served = serve.await;
            // Whoever asked us to stop is still to be answered.
            let _ = control.await;
            served
        };
        match tokio::time::timeout(FINISH_MAX, finish).await {
            Ok(served) => served?.map_err(anyhow::Error::msg),
            // A client that never finishes its request does not keep us.
            Err(_) => Ok(()),
        }
    }
}

async fn sweep_regularly(storage: Arc<Storage>, every: Option<Duration>) {
    let Some(every) = every else { return };
    loop {
        tokio::time::sleep(every).await;
        let storage = Arc::clone(&storage);
        let sweep = move || {
            let now = sweep::now_seconds();
            storage.with(|own| {
                sweep::sweep_ttl(own, now).and_then(|_| {
                    sweep::trim_streams(own, Some(now.saturating_sub(sweep::STREAM_SECONDS)))
                })
            })
        };
        // What fails now, a file that is busy for example, is tried again next time.
        let _ = tokio::task::spawn_blocking(sweep).await;
    }
}

/// Whoever reads the file reads all of it: it appears under its name when it is complete.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    std::fs::write(&name, text)?;
    std::fs::rename(&name, path)
}
