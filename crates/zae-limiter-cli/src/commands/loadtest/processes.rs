//! Users in several processes of this program. Each sends its intervals as lines, and ends when its
//! standard input does: when this process stops or dies.

use std::io::{BufRead as _, BufReader};
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::{Either, select};
use tokio::sync::mpsc;
use zae_limiter::{Clock, SystemClock};
use zae_limiter_loadtest::{Interval, engine};

/// How long starting processes and opening their stores may take, beside the run.
const START_MAX: Duration = Duration::from_secs(60);

/// The last line of a process that ended as it should.
pub(super) const OVER: &str = "over";

enum News {
    Told(Interval),
    Ended { whole: bool },
}

/// Starts `count` processes with the arguments of this one, and tells their intervals. How many did
/// not end as they should.
pub(super) async fn run(
    count: u32,
    duration: Duration,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(Interval),
) -> anyhow::Result<u32> {
    let program = std::env::current_exe().context("the path of this program is not known")?;
    let (send, mut news) = mpsc::unbounded_channel();
    let mut children = Children(Vec::new());
    for number in 0..count {
        let mut child = Command::new(&program)
            .args(std::env::args_os().skip(1))
            .arg("--part")
            .arg(format!("{number}/{count}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("process {number} of {count} did not start"))?;
        let stdout = child.stdout.take().context("a process without output")?;
        children.0.push(child);
        let send = send.clone();
        let read = move || {
            let mut whole = false;
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if line == OVER {
                    whole = true;
                } else if let Ok(interval) = serde_json::from_str(&line) {
                    let _ = send.send(News::Told(interval));
                }
            }
            let _ = send.send(News::Ended { whole });
        };
        Builder::new().name("part".into()).spawn(read).context("no thread for a process")?;
    }
    drop(send);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut deadline = clock.monotonic() + duration + engine::GRACE + START_MAX;
    let (mut running, mut lost, mut stopped) = (count, 0, false);
    let mut stop = pin!(stop);
    while running > 0 {
        let left = deadline.saturating_sub(clock.monotonic());
        if left.is_zero() {
            break;
        }
        let next = pin!(news.recv());
        let told = if stopped {
            match select(next, clock.sleep(left)).await {
                Either::Left((told, _)) => told,
                Either::Right(_) => None,
            }
        } else {
            match select(next, select(stop.as_mut(), clock.sleep(left))).await {
                Either::Left((told, _)) => told,
                Either::Right((Either::Left(_), _)) => {
                    stopped = true;
                    children.stop();
                    // One that hangs holds nobody up: it counts as lost.
                    deadline = deadline.min(clock.monotonic() + engine::GRACE);
                    continue;
                }
                Either::Right((Either::Right(_), _)) => None,
            }
        };
        match told {
            Some(News::Told(interval)) => tell(interval),
            Some(News::Ended { whole }) => {
                running -= 1;
                lost += u32::from(!whole);
            }
            None => break,
        }
    }
    Ok(lost + running)
}

/// Processes that end with this value, one way or the other.
struct Children(Vec<Child>);

impl Children {
    /// Asks all of them to end.
    fn stop(&mut self) {
        self.0.iter_mut().for_each(|child| drop(child.stdin.take()));
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended is only taken note of.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
