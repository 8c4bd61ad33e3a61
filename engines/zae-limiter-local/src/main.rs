//! `zae-limiter-local`: see `--help`.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::oneshot;
use zae_limiter_local::{Command, HELP, Options, Server};

/// What still works in the background is given up after this long.
const CLOSE_MAX: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    match Options::parse(std::env::args_os().skip(1)) {
        Ok(Command::Help) => say(HELP),
        Ok(Command::Version) => say(&format!(
            "zae-limiter-local {} (dynoxide {})\n",
            env!("CARGO_PKG_VERSION"),
            dynoxide::PRODUCT_VERSION
        )),
        Ok(Command::Serve(options)) => match serve(options) {
            Ok(()) => {}
            Err(error) => return complain(&format!("{error:#}"), ExitCode::FAILURE),
        },
        Err(error) => return complain(&format!("{error:#}; see --help"), ExitCode::from(2)),
    }
    ExitCode::SUCCESS
}

fn serve(options: Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?;
    let result = runtime.block_on(async {
        let stop = stop(options.exit_with_stdin)?;
        let server = Server::bind(&options).await?;
        say(&format!("listening on http://{}\n", server.address()));
        server.run(stop).await
    });
    // Whatever still waits for a peer is dropped, and with it the last handle of the file: the log
    // of a file that is closed goes.
    runtime.shutdown_timeout(CLOSE_MAX);
    result
}

/// Ends when somebody asks us to stop.
fn stop(with_stdin: bool) -> Result<impl Future<Output = ()>> {
    let stdin = with_stdin.then(stdin_closed).transpose()?;
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    #[cfg(unix)]
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    Ok(async move {
        let closed = async {
            match stdin {
                Some(closed) => drop(closed.await),
                None => std::future::pending().await,
            }
        };
        #[cfg(unix)]
        tokio::select! {
            () = closed => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        #[cfg(not(unix))]
        tokio::select! {
            () = closed => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    })
}

fn stdin_closed() -> Result<oneshot::Receiver<()>> {
    let (closed, receiver) = oneshot::channel();
    let read = move || {
        let mut ignored = [0; 64];
        while std::io::stdin().read(&mut ignored).is_ok_and(|length| length > 0) {}
        let _ = closed.send(());
    };
    std::thread::Builder::new()
        .name("stdin".into())
        .spawn(read)
        .context("no thread to watch standard input")?;
    Ok(receiver)
}

/// A reader that has gone away is no reason to fail.
fn say(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn complain(problem: &str, code: ExitCode) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "zae-limiter-local: {problem}");
    code
}
