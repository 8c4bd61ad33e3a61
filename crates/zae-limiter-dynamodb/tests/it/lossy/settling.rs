//! Charges are sent until they land; credits at most once.

use futures_util::future::join_all;
use zae_limiter_store::{Adjusted, ConsumeOutcome, StoreErrorKind};
use zae_limiter_testkit::engine::proxy::Fault;
use zae_limiter_testkit::zae_limiter::{RateLimiter, Request};

use crate::lossy::rig::{Bucket, LANDED_UNHEARD, LATE, LOST_UNHEARD, NOW, Rig, TOLD};

/// A bucket with 60 of 100 left.
async fn prepared(rig: &Rig) -> Bucket {
    let bucket = Bucket::new("user");
    let outcome = rig.take(&bucket, 40).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
    bucket
}

/// A charge of 90, into debt, that meets one fault. `idle_ms` after the take: with time to refill,
/// it is written otherwise.
async fn check_charge(fault: Fault, idle_ms: i64, sends: usize, counted: [u64; 4]) {
    let mut rig = Rig::new(fault).await;
    let bucket = prepared(&rig).await;
    rig.advance(idle_ms);
    rig.script(&[fault]);
    assert_eq!(rig.adjust(&bucket, &[(0, 90)]).await.unwrap(), Adjusted::Applied, "{fault:?}");
    let sent = rig.sent().await;
    assert_eq!(
        (sent.len(), sent.iter().map(|entry| entry.landings).sum::<u32>()),
        (sends, 1),
        "{fault:?}: {sent:?}"
    );
    assert!(
        sent.iter().all(|entry| entry.nonce == sent[0].nonce && entry.nonce.is_some()),
        "{sent:?}"
    );
    assert_eq!(
        rig.counted(),
        counted,
        "{fault:?}: sent again, confirmed, unknown, credits unknown"
    );
    let before = if idle_ms == 0 { 60 } else { 100 };
    assert_eq!(rig.balance(&bucket).await, (before - 90, 130), "{fault:?}");
}

#[tokio::test]
async fn a_charge_lands_once_whatever_happens() {
    let outcomes = LANDED_UNHEARD.map(|fault| (fault, 2, [1, 1, 0, 0])).into_iter();
    let outcomes = outcomes.chain(LOST_UNHEARD.map(|fault| (fault, 2, [1, 0, 0, 0])));
    let outcomes = outcomes.chain(TOLD.map(|fault| (fault, 2, [0, 0, 0, 0])));
    let outcomes = outcomes.chain([
        (LATE, 2, [1, 0, 0, 0]),
        (Fault::Twice(NOW), 1, [0, 0, 0, 0]),
        (Fault::TwiceAnswerSecond(NOW), 1, [0, 1, 0, 0]),
    ]);
    let cases = outcomes.flat_map(|(fault, sends, counted)| {
        [0, 600_000].map(|idle_ms| check_charge(fault, idle_ms, sends, counted))
    });
    join_all(cases).await;
}

#[tokio::test]
async fn a_charge_that_gives_up_is_of_unknown_fate_if_any_attempt_was() {
    for (faults, kind, landed, counted) in [
        ([Fault::CloseAfter; 3], StoreErrorKind::Unavailable, 1, [1, 0, 1, 0]),
        ([Fault::CloseBefore; 3], StoreErrorKind::Unavailable, 0, [1, 0, 1, 0]),
        (
            [Fault::ErrorAfter, Fault::Throttle, Fault::Throttle],
            StoreErrorKind::Unavailable,
            1,
            [1, 0, 1, 0],
        ),
        (
            [Fault::Throttle, Fault::Conflict, Fault::Throttle],
            StoreErrorKind::Busy,
            0,
            [0, 0, 0, 0],
        ),
    ] {
        let mut rig = Rig::new(Fault::Pass).await;
        let bucket = prepared(&rig).await;
        rig.script(&faults);
        let error = rig.adjust(&bucket, &[(0, 90)]).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{faults:?}: {error}");
        assert_eq!(
            rig.sent().await.iter().map(|entry| entry.landings).sum::<u32>(),
            landed,
            "{faults:?}"
        );
        assert_eq!(
            rig.counted(),
            counted,
            "{faults:?}: sent again, confirmed, unknown, credits unknown"
        );
    }
}

/// Gives 10 back through one fault.
async fn give_back(fault: Fault) -> (Rig, Bucket, Result<Adjusted, zae_limiter_store::StoreError>) {
    let mut rig = Rig::new(fault).await;
    let bucket = prepared(&rig).await;
    rig.script(&[fault]);
    let result = rig.adjust(&bucket, &[(0, -10)]).await;
    (rig, bucket, result)
}

#[tokio::test]
async fn a_credit_of_unknown_fate_is_never_sent_again() {
    join_all(LANDED_UNHEARD.into_iter().chain(LOST_UNHEARD).chain([LATE]).map(async |fault| {
        let (rig, bucket, result) = give_back(fault).await;
        let error = result.unwrap_err();
        assert!(error.fate_unknown(), "{fault:?}: {error}");
        let sent = rig.sent().await;
        let landed = u32::from(fault.applies());
        assert_eq!((sent.len(), sent[0].landings), (1, landed), "{fault:?}: {sent:?}");
        assert_eq!(rig.counted(), [0, 0, 0, 1], "{fault:?}");
        let back = 10 * i64::from(landed);
        assert_eq!(rig.balance(&bucket).await, (60 + back, 40 - back), "{fault:?}");
    }))
    .await;
}

#[tokio::test]
async fn a_credit_that_was_not_applied_and_said_so_is_sent_again() {
    for fault in TOLD {
        let (rig, bucket, result) = give_back(fault).await;
        assert_eq!(result.unwrap(), Adjusted::Applied);
        let sent = rig.sent().await;
        assert_eq!(
            sent.iter().map(|entry| entry.landings).collect::<Vec<_>>(),
            [0, 1],
            "{fault:?}"
        );
        assert_eq!(rig.counted(), [0, 0, 0, 0]);
        assert_eq!(rig.balance(&bucket).await, (70, 30));
    }
    let mut rig = Rig::new(Fault::Pass).await;
    let bucket = prepared(&rig).await;
    rig.script(&[Fault::Throttle; 3]);
    let error = rig.adjust(&bucket, &[(0, -10)]).await.unwrap_err();
    assert_eq!((error.kind(), rig.counted()), (StoreErrorKind::Busy, [0, 0, 0, 0]));
}

/// A wire that repeats requests by itself gives back twice: the client sends a credit once and can
/// do no more. Such a wire is not TCP but a middlebox that retries; the amount is bounded by the
/// capacity.
#[tokio::test]
async fn a_credit_repeated_by_the_wire_counts_twice() {
    for fault in [Fault::Twice(NOW), Fault::TwiceAnswerSecond(NOW)] {
        let (rig, bucket, result) = give_back(fault).await;
        assert_eq!(result.unwrap(), Adjusted::Applied);
        let sent = rig.sent().await;
        assert_eq!((sent.len(), sent[0].landings), (1, 2), "{fault:?}: {sent:?}");
        assert_eq!(rig.balance(&bucket).await, (80, 20), "{fault:?}");
    }
}

#[tokio::test]
async fn nobody_there_is_no_unknown_credit() {
    let mut rig = Rig::new(Fault::Pass).await;
    let bucket = prepared(&rig).await;
    rig.script(&[]);
    rig.nobody().await;
    let error = rig.adjust(&bucket, &[(0, -10)]).await.unwrap_err();
    assert_eq!((error.kind(), rig.counted()), (StoreErrorKind::Unavailable, [0, 0, 0, 0]));
    assert_eq!(rig.balance(&bucket).await, (60, 40));
}

/// A charge and a credit in one settlement are two writes. If the credit is lost the charge has
/// landed all the same: an error would have it sent again.
#[tokio::test]
async fn a_landed_charge_is_not_reported_lost_with_its_credit() {
    for (fault, counted) in [
        (Fault::CloseAfter, [0, 0, 0, 1]),
        (Fault::CloseBefore, [0, 0, 0, 1]),
        (Fault::Throttle, [0, 0, 0, 0]),
    ] {
        let mut rig = Rig::new(fault).await;
        let bucket = prepared(&rig).await;
        rig.script(&[Fault::Pass, fault, fault, fault]);
        assert_eq!(
            rig.adjust(&bucket, &[(0, 10), (1, -10)]).await.unwrap(),
            Adjusted::Applied,
            "{fault:?}"
        );
        assert_eq!(rig.counted(), counted, "{fault:?}");
        assert_eq!(rig.balance(&bucket).await, (50, 50), "{fault:?}");
    }
}

/// The same through the library: the settler must not charge again.
#[tokio::test]
async fn a_lease_is_charged_once_when_the_credit_beside_it_is_lost() {
    let mut rig = Rig::new(Fault::Pass).await;
    let bucket = Bucket::new("user");
    let limiter = RateLimiter::builder(rig.store.clone())
        .default_limits(bucket.limits.limits.iter().cloned())
        .build()
        .unwrap();
    let lease = limiter
        .acquire(Request::new("user", "gpt-4").take("rpm", 10).take("tpm", 100))
        .await
        .unwrap();
    lease.record("rpm", 30).unwrap();
    lease.record("tpm", 20).unwrap();
    rig.script(&[Fault::Pass, Fault::CloseAfter]);
    let _ = lease.commit().await;
    limiter.drain().await;
    let charged: i64 = rig.sent().await.iter().map(|entry| entry.counted("rpm")).sum();
    assert_eq!(charged, 20_000, "what was used beyond what was taken, once");
    assert_eq!(rig.balance(&bucket).await.1, 30);
}
