//! Who calls the gateway: an org, two projects, five keys. A take goes from a key over its project
//! to the org.

use std::collections::BTreeMap;

use zae_limiter::{Level, NewEntity, RateLimiter};

/// What is called.
pub(super) const RESOURCE: &str = "gpt-4";

/// One entity of the demo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) id: &'static str,
    pub(super) parent: Option<&'static str>,
    /// Its limits on the resource; empty for those with the system's defaults.
    limits: &'static [&'static str],
    /// `None` for an entity that makes no calls.
    habits: Option<Habits>,
}

/// How a key behaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// Tokens it expects a call to cost: from, to.
    pub(super) estimate: (u64, u64),
    /// What calls really cost, in percent of the estimate: from, to.
    pub(super) cost_pct: (u64, u64),
    /// Milliseconds between two calls.
    pub(super) pause_ms: u64,
}

/// Parents before children.
pub(super) const MEMBERS: [Member; 8] = [
    Member {
        id: "acme",
        parent: None,
        limits: &["rpm:900/min:60", "tpm:240000/min:20000"],
        habits: None,
    },
    Member {
        id: "acme-web",
        parent: Some("acme"),
        limits: &["rpm:600/min:30", "tpm:180000/min:12000"],
        habits: None,
    },
    key(
        "web-1",
        "acme-web",
        &[],
        Habits { estimate: (200, 900), cost_pct: (60, 120), pause_ms: 350 },
    ),
    key(
        "web-2",
        "acme-web",
        &[],
        Habits { estimate: (100, 400), cost_pct: (80, 160), pause_ms: 200 },
    ),
    // Smaller than what its keys may take together: it is the project that refuses.
    Member {
        id: "acme-batch",
        parent: Some("acme"),
        limits: &["rpm:300/min:30", "tpm:60000/min:5000"],
        habits: None,
    },
    key(
        "batch-1",
        "acme-batch",
        &[],
        Habits { estimate: (800, 1600), cost_pct: (50, 100), pause_ms: 300 },
    ),
    key(
        "batch-2",
        "acme-batch",
        &[],
        Habits { estimate: (600, 1200), cost_pct: (90, 220), pause_ms: 250 },
    ),
    key(
        "batch-3",
        "acme-batch",
        &["rpm:30/min:2", "tpm:30000/min:4000"],
        Habits { estimate: (50, 150), cost_pct: (90, 110), pause_ms: 20 },
    ),
];

/// For every key without limits of its own.
const DEFAULTS: [&str; 2] = ["rpm:240/min:12", "tpm:90000/min:6000"];

const fn key(
    id: &'static str,
    parent: &'static str,
    limits: &'static [&'static str],
    habits: Habits,
) -> Member {
    Member { id, parent: Some(parent), limits, habits: Some(habits) }
}

impl Member {
    /// The name, further in the deeper it is.
    pub(super) fn label(&self) -> String {
        format!("{}{}", "  ".repeat(ancestors(self.id).count()), self.id)
    }
}

/// Those who call.
pub(super) fn keys() -> impl Iterator<Item = (Member, Habits)> {
    MEMBERS.into_iter().filter_map(|member| Some((member, member.habits?)))
}

/// The parent, its parent, and so on.
pub(super) fn ancestors(id: &str) -> impl Iterator<Item = &'static str> {
    let parent =
        |id: &str| MEMBERS.iter().find(|member| member.id == id).and_then(|member| member.parent);
    std::iter::successors(parent(id), move |id| parent(id))
}

/// Stores the world in an empty file.
pub(super) async fn create(limiter: &RateLimiter) -> anyhow::Result<()> {
    limiter.set_limits(&Level::System, parsed(&DEFAULTS)?).await?;
    for member in MEMBERS {
        let (id, name) = (member.id.parse()?, member.id.to_owned());
        let parent = member.parent.map(str::parse).transpose()?;
        let (cascade, metadata) = (parent.is_some(), BTreeMap::new());
        limiter.create_entity(NewEntity { id, name, cascade, parent, metadata }).await?;
        if !member.limits.is_empty() {
            let level = Level::EntityResource(member.id.parse()?, RESOURCE.parse()?);
            limiter.set_limits(&level, parsed(member.limits)?).await?;
        }
    }
    Ok(())
}

fn parsed(limits: &[&str]) -> anyhow::Result<Vec<zae_limiter::Limit>> {
    Ok(limits.iter().map(|limit| limit.parse()).collect::<Result<_, _>>()?)
}
