//! The seeded simulator over the DynamoDB protocol. A failing seed prints itself, its trace and the
//! command that replays it. `docs/protocol-simulator.md` says what is simulated, what is checked,
//! and which guard of the protocol it misses when it is gone.

use zae_limiter_dynamodb::bucket::writers::{REGISTRY, Writer};
use zae_limiter_testkit::sim::{Backend, Report, replay as replay_seed, simulate_all};

/// Seeds of a usual run; `ZAEL_SIM_SEEDS` asks for another number, `ZAEL_SIM_FIRST` for others.
const SEEDS: u64 = 5_000;

#[expect(
    clippy::disallowed_methods,
    reason = "the one place of the simulator that reads the environment: which seeds to run"
)]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Runs the seeds on all cores and stops at the first broken promise.
fn run_seeds() -> Vec<Report> {
    let (count, first) =
        (setting("ZAEL_SIM_SEEDS").unwrap_or(SEEDS), setting("ZAEL_SIM_FIRST").unwrap_or(0));
    simulate_all(first, count, Backend::Dynamo).unwrap_or_else(|failure| panic!("{failure}"))
}

/// How often each writer has to land in a thousand runs.
fn needed(writer: Writer) -> u64 {
    match writer {
        Writer::Fast | Writer::Create | Writer::Credit => 2_000,
        Writer::Refill => 800,
        Writer::BlindFill => 400,
        Writer::Sync => 340,
        Writer::SyncOnly | Writer::Flag => 210,
        Writer::ChargeFast => 115,
        Writer::ChargeRefill => 65,
        Writer::Reset => 20,
        Writer::Recreate => 6,
        Writer::Delete => 9,
        Writer::ChargePlain => 2,
        Writer::Split | Writer::SplitChild => 800,
        Writer::Fold | Writer::FoldChild => 110,
        Writer::Prune => 4,
        Writer::AggregatorRefill => 55,
        // Local blocks have a simulator of their own: dynamodb `blocks::seeds`.
        Writer::Lend | Writer::Settle | Writer::CountUse => 0,
        // Nobody moves here: dynamodb `adopt::`, on a table that loses answers.
        Writer::Adopt => 0,
    }
}

/// A run that meets nothing proves nothing: every writer and every kind of event must have happened
/// often enough.
#[test]
fn seeds() {
    let reports = run_seeds();
    let sum = |count: &dyn Fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    let mut counts: Vec<(String, u64, u64)> = (0..)
        .zip(REGISTRY)
        .map(|(place, rules)| {
            (
                format!("landed: {:?}", rules.writer),
                sum(&|r| r.protocol.writers[place]),
                needed(rules.writer),
            )
        })
        .collect();
    // What, how often it happened, and how often it has to happen in a thousand runs.
    let mut event = |what: &str, count: u64, per_thousand: u64| {
        counts.push((what.to_owned(), count, per_thousand))
    };
    event("steps", sum(&|r| r.steps), 28_000);
    event("calls that failed, were lost or came late", sum(&|r| r.faults), 9_700);
    event("writes that landed late", sum(&|r| r.protocol.late), 200);
    event("writes that were delivered twice", sum(&|r| r.protocol.copies), 1_000);
    event("copies that landed", sum(&|r| r.protocol.copies_landed), 115);
    event("writes held to the ideal bucket exactly", sum(&|r| r.protocol.exact), 4_900);
    event("operations that landed twice, and were counted", sum(&|r| r.protocol.doubled), 180);
    event("takes that landed unheard", sum(&|r| r.protocol.unheard), 150);
    event("credits the stores gave up, and counted", sum(&|r| r.protocol.credits_lost), 230);
    event("credits that found nothing to give back to", sum(&|r| r.protocol.credits_gone), 36);
    event("chains that were refused and given back", sum(&|r| r.protocol.compensated), 500);
    event("grants to a chain with a member without limits", sum(&|r| r.protocol.unlimited), 300);
    event("buckets in debt", sum(&|r| r.protocol.in_debt), 95);
    event("buckets that hide a gap", sum(&|r| r.protocol.gaps), 630);
    event("expired buckets", sum(&|r| r.protocol.swept), 130);
    event("deleted buckets", sum(&|r| r.protocol.deleted), 9);
    event("deletions that were ordered", sum(&|r| r.protocol.deeds.deletions_ordered), 24);
    event("deletions that were resumed", sum(&|r| r.protocol.deeds.deletions_resumed), 5);
    event("deletions that came to their end", sum(&|r| r.protocol.deeds.deletions_finished), 12);
    event(
        "flags written after the configuration had changed",
        sum(&|r| r.protocol.deeds.flags_after_a_change),
        35,
    );
    event(
        "listings by an index more than two seconds behind",
        sum(&|r| r.protocol.far_behind),
        130,
    );
    event("foreign writes", sum(&|r| r.protocol.foreign), 80);
    event("damaged items", sum(&|r| r.protocol.damaged), 16);
    event("clocks that stepped", sum(&|r| r.protocol.stepped), 260);
    event("changes of the configuration", sum(&|r| r.freshness.changes), 7_300);
    event(
        "grants held against the history of the configuration",
        sum(&|r| r.freshness.checked),
        2_200,
    );
    event("buckets held against it when they were made", sum(&|r| r.protocol.made), 1_900);
    event("members read again after being idle beyond all trust", sum(&|r| r.freshness.idle), 420);
    event("takes decided by what had just expired", sum(&|r| r.freshness.lent), 40);
    event(
        "clocks that stepped further than an instant may be off",
        sum(&|r| r.protocol.stepped_far),
        115,
    );
    event("takes that landed too late, and were given back", sum(&|r| r.protocol.overdue), 80);
    event("cancelled operations", sum(&|r| r.cancelled), 500);
    event("crashes", sum(&|r| r.crashes), 155);
    event("leases without a decision", sum(&|r| r.degraded), 1_800);
    event("changes the settlers gave up", sum(&|r| r.lost), 1_750);
    event("splits", sum(&|r| r.protocol.shards.splits), 800);
    event("splits with limits that are not divided", sum(&|r| r.protocol.shards.pinned), 300);
    event("splits of shards with gaps or debts", sum(&|r| r.protocol.shards.burdened), 45);
    event("folds", sum(&|r| r.protocol.shards.folds), 110);
    event("repairs", sum(&|r| r.protocol.shards.repairs), 2);
    event("prunes", sum(&|r| r.protocol.shards.prunes), 4);
    event("takes from several shards at once", sum(&|r| r.protocol.shards.gathers), 30);
    event("refusals after all shards were read", sum(&|r| r.protocol.shards.refusals), 120);
    event("limits of them that were really short", sum(&|r| r.protocol.shards.proven), 50);
    event("splits by takes that found no room", sum(&|r| r.protocol.shards.pressed), 45);
    event("settlements that walked to a donor", sum(&|r| r.protocol.shards.walks), 1);
    event("takes from one of several shards", sum(&|r| r.protocol.shards.takes), 600);
    event("changes of limits on one of several shards", sum(&|r| r.protocol.shards.syncs), 200);
    event("flags on one of several shards", sum(&|r| r.protocol.shards.flags), 100);
    event("shards deleted with their bucket", sum(&|r| r.protocol.shards.deleted), 5);
    event("counts that a foreign writer has raised", sum(&|r| r.protocol.shards.raised), 20);
    event(
        "writes that took a shard for the only one",
        sum(&|r| r.protocol.shards.taken_for_one),
        700,
    );
    event("writes that lost to another count", sum(&|r| r.protocol.shards.other_count), 140);
    event("writes that lost to another era", sum(&|r| r.protocol.shards.other_era), 14);
    event("writes to shards that were folded", sum(&|r| r.protocol.shards.taken_away), 14);
    event("batches of the stream", sum(&|r| r.protocol.stream.batches), 800);
    event("records that were counted before", sum(&|r| r.protocol.stream.repeated), 1700);
    event("batches that were cut", sum(&|r| r.protocol.stream.cut), 170);
    event("records that were lost", sum(&|r| r.protocol.stream.lost), 15);
    event("snapshots held to the ledger", sum(&|r| r.protocol.stream.snapshots), 2600);
    event("refills ahead of the takes", sum(&|r| r.protocol.stream.refills), 55);
    event("splits ahead of the takes", sum(&|r| r.protocol.stream.splits), 10);
    event("shards made by levelling", sum(&|r| r.protocol.stream.levelled), 110);
    event("folds of quiet buckets", sum(&|r| r.protocol.stream.folds), 40);
    println!("{} runs", reports.len());
    counts.iter().for_each(|(what, count, _)| println!("{count:>9} {what}"));
    let thousands = reports.len() as u64 / 1_000;
    for (what, count, per_thousand) in counts {
        assert!(count >= thousands * per_thousand, "only {count} {what} in {} runs", reports.len());
    }
}

/// The same seed is the same run.
#[test]
fn one_seed_is_one_run() {
    for seed in 0..50 {
        let fingerprint = || {
            replay_seed(seed, Backend::Dynamo)
                .1
                .unwrap_or_else(|failure| panic!("{failure}"))
                .fingerprint
        };
        assert_eq!(fingerprint(), fingerprint(), "seed {seed} is two different runs");
    }
}

/// Replays `ZAEL_SIM_SEED` with its whole trace.
#[test]
fn replay() {
    let seed = setting("ZAEL_SIM_SEED");
    let (trace, result) = replay_seed(seed.unwrap_or(0), Backend::Dynamo);
    if seed.is_some() {
        trace.iter().for_each(|line| println!("{line}"));
    }
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
