//! Callers in a hierarchy: a key belongs to a project, a project to an org, and a call takes from
//! all three or from none. A refusal says whose limit it was.
//!
//! `cargo run -p zae-limiter --example hierarchical`

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::Path;

use zae_limiter::sqlite::SqliteStore;
use zae_limiter::{AcquireError, Clock, Level, NewEntity, RateLimiter, Request, SystemClock};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    run(&folder.path().join("limits.db"), SystemClock::new(), &mut std::io::stdout()).await
}

/// Its test passes a clock that stands still.
pub(crate) async fn run(
    path: &Path,
    clock: impl Clock + 'static,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let limiter = RateLimiter::builder(SqliteStore::open(path)?).clock(clock).build()?;

    // Parents first: a parent must exist. `cascade` makes calls go on to it.
    let family = [
        ("org", None),
        ("project-a", Some("org")),
        ("project-b", Some("org")),
        ("key-1", Some("project-a")),
        ("key-2", Some("project-b")),
    ];
    for (id, parent) in family {
        let parent = parent.map(str::parse).transpose()?;
        let cascade = parent.is_some();
        limiter
            .create_entity(NewEntity {
                id: id.parse()?,
                name: id.into(),
                parent,
                cascade,
                metadata: BTreeMap::new(),
            })
            .await?;
    }

    // Everyone is held to limits of their own. `rpm` is a matter of keys: who does not have it is
    // not asked about it.
    limiter.set_limits(&Level::Entity("org".parse()?), ["tpm:5000/min".parse()?]).await?;
    for project in ["project-a", "project-b"] {
        limiter.set_limits(&Level::Entity(project.parse()?), ["tpm:3000/min".parse()?]).await?;
    }
    for key in ["key-1", "key-2"] {
        limiter
            .set_limits(
                &Level::Entity(key.parse()?),
                ["rpm:2/min".parse()?, "tpm:4000/min".parse()?],
            )
            .await?;
    }

    call(&limiter, "key-1", 2000, out).await?;
    call(&limiter, "key-1", 2000, out).await?; // its project has 1000 left
    call(&limiter, "key-2", 2500, out).await?;
    call(&limiter, "key-2", 1000, out).await?; // its project has 500 left, the org as well
    call(&limiter, "key-2", 500, out).await?;
    call(&limiter, "key-2", 1, out).await?; // everyone in its chain refuses, for a reason of their own

    limiter.close().await;
    Ok(())
}

/// One call: from every bucket of the chain, or from none.
async fn call(
    limiter: &RateLimiter,
    key: &str,
    tokens: u64,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    match limiter.acquire(Request::new(key, "gpt-4").take("rpm", 1).take("tpm", tokens)).await {
        Ok(lease) => {
            writeln!(out, "{key} takes {tokens} tokens")?;
            for status in lease.statuses() {
                writeln!(
                    out,
                    "  {} has {} {} left",
                    status.entity,
                    status.available,
                    status.limit.name()
                )?;
            }
            lease.commit().await?;
        }
        Err(AcquireError::Exceeded(report)) => {
            writeln!(
                out,
                "{key} is refused {tokens} tokens; in {} it could pass",
                report.retry_after()
            )?;
            for status in report.violations() {
                writeln!(
                    out,
                    "  {} has only {} {} left",
                    status.entity,
                    status.available,
                    status.limit.name()
                )?;
            }
        }
        Err(other) => return Err(other.into()),
    }
    Ok(())
}
