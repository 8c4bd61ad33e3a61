//! Which cases of the conformance suite do not run on DynamoDB, and why. A case that could not fail
//! here is one of them.

use zae_limiter_store::Store as _;
use zae_limiter_store::conformance::{Promise, skipped};
use zae_limiter_testkit::table::EvalOptions;

use crate::evaluated::Rig;

#[tokio::test]
async fn the_skipped_cases_are_those_the_documents_name() {
    let rig = Rig::new(EvalOptions::new()).await;
    // As the suite runs: without the allowance for hot buckets.
    let store = rig.client(rig.table.clone(), |options| options.fast_grace_ms = 0).await;
    let mut of_usage = 0;
    let mut of_sweeps = 0;
    let mut others = Vec::new();
    for case in skipped(&store.capabilities()) {
        if case.requires.contains(&Promise::ImmediateUsage) {
            of_usage += 1;
        } else if case.requires.contains(&Promise::Sweeps) {
            of_sweeps += 1;
        } else {
            others.push(case.name);
        }
    }
    assert_eq!(
        others,
        [
            "refill::a_take_by_a_clock_that_is_years_ahead_freezes_nothing",
            "refill::a_clock_that_comes_back_to_the_future_is_paid_once",
            "cascade::a_disabled_member_without_limits_stops_the_chain",
            "races::a_refused_chain_is_never_seen",
        ]
    );
    let sharded = rig.client(rig.table.clone(), |options| {
        (options.fast_grace_ms, options.born_split) = (0, 4);
    });
    let sharded = sharded.await.capabilities();
    let (mut of_exactness, mut of_debt) = (0, Vec::new());
    for case in skipped(&sharded).filter(|case| case.lacking(&store.capabilities()).is_none()) {
        match case.lacking(&sharded) {
            Some(Promise::Exact) => of_exactness += 1,
            lacking => of_debt.push((case.name, lacking)),
        }
    }
    assert_eq!(
        of_debt,
        [
            ("adjust::debt_blocks_until_it_is_refilled", Some(Promise::WholeBuckets)),
            ("adjust::a_declared_limit_in_debt_refuses", Some(Promise::WholeBuckets)),
        ]
    );
    let told = format!("{} cases are skipped", of_usage + of_sweeps + others.len());
    let document =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/dynamodb.md"))
            .unwrap();
    // Where its lines end does not matter.
    let document = document.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(document.contains(&told), "{told:?} is not in docs/dynamodb.md");
    assert!(
        document.contains(&format!("{of_usage} on usage"))
            && document.contains(&format!("{of_sweeps} on sweeping")),
        "{of_usage}, {of_sweeps}"
    );
    let told = format!("{} more cases are skipped there", of_exactness + of_debt.len());
    assert!(document.contains(&told), "{told:?} is not in docs/dynamodb.md");
    assert!(document.contains(&format!("{of_exactness} that are exact")), "{of_exactness}");
}
