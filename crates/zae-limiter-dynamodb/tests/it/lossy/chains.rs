//! Chains: all or nothing, as far as anybody can know.

use futures_util::future::join_all;
use zae_limiter_store::{ConsumeOutcome, StoreErrorKind};
use zae_limiter_testkit::engine::proxy::Fault;

use crate::lossy::rig::{Bucket, LANDED_UNHEARD, LATE, LOST_UNHEARD, NOW, Rig, TOLD};

/// A chain of two, 99 left in the child and 9 in the parent, which the client does not know.
async fn prepared(rig: &Rig) -> [Bucket; 2] {
    let chain = [Bucket::new("user"), Bucket::new("team")];
    let outcome = rig.take_chain(&chain, 1).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
    rig.take_by_other(&chain[1], 90).await;
    chain
}

/// The parent refuses, at the second look too; the refund of the child meets a fault. The debits
/// themselves pass.
async fn refused_chain(fault: Fault) -> (Rig, [Bucket; 2]) {
    let mut rig = Rig::new(fault).await;
    let chain = prepared(&rig).await;
    rig.script(&[Fault::Pass, Fault::Pass, Fault::Pass, fault]);
    let outcome = rig.take_chain(&chain, 20).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Refused(_)), "{fault:?}: {outcome:?}");
    assert_eq!(rig.store.counters().compensations, 1, "{fault:?}");
    assert_eq!(rig.balance(&chain[1]).await, (9, 91), "{fault:?}");
    (rig, chain)
}

#[tokio::test]
async fn a_refund_of_unknown_fate_is_sent_once_and_counted() {
    join_all(LANDED_UNHEARD.into_iter().chain(LOST_UNHEARD).chain([LATE]).map(async |fault| {
        let (rig, chain) = refused_chain(fault).await;
        let sent = rig.sent().await;
        let credits: Vec<_> = sent.iter().filter(|entry| entry.is_credit()).collect();
        assert_eq!(credits.len(), 1, "{fault:?}: {sent:?}");
        assert_eq!(rig.counted(), [0, 0, 0, 1], "{fault:?}");
        let left = if fault.applies() { 99 } else { 79 };
        assert_eq!(rig.balance(&chain[0]).await, (left, 100 - left), "{fault:?}");
    }))
    .await;
}

#[tokio::test]
async fn a_refund_that_was_not_applied_and_said_so_is_sent_again() {
    for fault in TOLD {
        let (rig, chain) = refused_chain(fault).await;
        assert_eq!(rig.counted(), [0, 0, 0, 0], "{fault:?}");
        assert_eq!(rig.balance(&chain[0]).await, (99, 1), "{fault:?}");
    }
}

/// Twice 20 on 79: clamped at the capacity, so the wire can give at most what the bucket lacks.
#[tokio::test]
async fn a_refund_repeated_by_the_wire_never_lifts_above_capacity() {
    let (rig, chain) = refused_chain(Fault::Twice(NOW)).await;
    let sent = rig.sent().await;
    assert_eq!(
        sent.iter().filter(|entry| entry.is_credit()).map(|entry| entry.landings).sum::<u32>(),
        1,
        "the second had no room"
    );
    assert_eq!(rig.balance(&chain[0]).await, (99, 1));
}

/// One member cannot be reached: what the other took is given back, the error is told.
#[tokio::test]
async fn a_member_of_unknown_fate_has_the_others_given_back() {
    for (fault, landed) in [(Fault::CloseAfter, 1), (Fault::CloseBefore, 0)] {
        let mut rig = Rig::new(fault).await;
        let chain = [Bucket::new("user"), Bucket::new("team")];
        let outcome = rig.take_chain(&chain, 1).await.unwrap();
        assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
        rig.script(&[]);
        // The first write to arrive is one of the two; the plan follows its bucket by counting: all
        // but one pass.
        let mut seen = 0;
        rig.proxy.plan(move |operation| {
            seen += u32::from(operation == "UpdateItem");
            // Writes 1 and 2 are the members; 3 and 4 repeat the one that met the fault; what
            // follows is the refund.
            if operation == "UpdateItem" && matches!(seen, 1 | 3 | 4) { fault } else { Fault::Pass }
        });
        let result = rig.take_chain(&chain, 20).await;
        assert_eq!(result.unwrap_err().kind(), StoreErrorKind::Unavailable);
        let sent = rig.sent().await;
        let of = |bucket: &Bucket| {
            sent.iter()
                .filter(|entry| entry.pk == rig.pk(bucket))
                .map(|entry| entry.counted("rpm"))
                .sum::<i64>()
        };
        let net = [of(&chain[0]), of(&chain[1])];
        let met = sent[0].pk.clone();
        for (bucket, net) in chain.iter().zip(net) {
            let expected = if rig.pk(bucket) == met { 20_000 * landed } else { 0 };
            assert_eq!(net, expected, "{fault:?}: {sent:?}");
        }
        assert_eq!(rig.counted(), [1, 0, 1, 0], "{fault:?}");
    }
}
