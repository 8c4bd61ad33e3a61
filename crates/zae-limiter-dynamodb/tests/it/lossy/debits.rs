//! Takes: sent until there is an answer, counted once.

use futures_util::future::join_all;
use zae_limiter_core::LimitSource;
use zae_limiter_store::{ConsumeOutcome, StoreErrorKind};
use zae_limiter_testkit::engine::proxy::Fault;

use crate::lossy::rig::{Bucket, LANDED_UNHEARD, LATE, LOST_UNHEARD, NOW, Rig, TOLD};

/// The ways a take can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Fast,
    Add,
    Fill,
    Create,
}

const FORMS: [Form; 4] = [Form::Fast, Form::Add, Form::Fill, Form::Create];

/// A bucket of 100 from which the next take is written in this form, and what is left of it before.
async fn prepared(rig: &mut Rig, form: Form) -> (Bucket, i64, i64) {
    let bucket = Bucket::new("user");
    let before = match form {
        Form::Create => (100, 0),
        _ => {
            granted(rig.take(&bucket, 40).await.unwrap());
            match form {
                Form::Fast => (60, 40),
                // 10 s bring 10 back.
                Form::Add => {
                    granted(rig.take(&bucket, 60).await.unwrap());
                    rig.advance(10_000);
                    (10, 100)
                }
                _ => {
                    rig.advance(90_000);
                    (100, 40)
                }
            }
        }
    };
    if form == Form::Create {
        // That there is none is remembered, so that the first write is the one that makes it.
        let outcome = rig.take(&bucket, 1_000).await.unwrap();
        assert!(matches!(outcome, ConsumeOutcome::Refused(_)), "{outcome:?}");
    }
    (bucket, before.0, before.1)
}

#[track_caller]
fn granted(outcome: ConsumeOutcome) {
    assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
}

/// One fault, then all is well: granted, counted once. Cases run side by side: most of their time
/// is waiting.
async fn check(form: Form, fault: Fault, sends: usize, counted: [u64; 4]) {
    let mut rig = Rig::new(fault).await;
    let (bucket, balance, consumed) = prepared(&mut rig, form).await;
    rig.script(&[fault]);
    let outcome = rig.take(&bucket, 7).await.unwrap();
    let ConsumeOutcome::Granted(grant) = &outcome else {
        panic!("{form:?}, {fault:?}: {outcome:?}")
    };
    assert_eq!(grant.reports[0].balance.0, (balance - 7) * 1000, "{form:?}, {fault:?}: the report");
    let sent = rig.sent().await;
    assert_eq!(
        sent.iter().map(|entry| entry.landings).sum::<u32>(),
        1,
        "{form:?}, {fault:?}: {sent:?}"
    );
    assert_eq!(sent.len(), sends, "{form:?}, {fault:?}: {sent:?}");
    assert!(
        sent.iter().all(|entry| entry.nonce == sent[0].nonce && entry.nonce.is_some()),
        "one mark for all: {sent:?}"
    );
    assert_eq!(sent[0].is_put, form == Form::Create);
    assert_eq!(
        rig.counted(),
        counted,
        "{form:?}, {fault:?}: sent again, confirmed, unknown, credits unknown"
    );
    assert_eq!(rig.balance(&bucket).await, (balance - 7, consumed + 7), "{form:?}, {fault:?}");
}

#[tokio::test]
async fn landed_unheard_is_confirmed_by_its_mark() {
    let cases = FORMS
        .into_iter()
        .flat_map(|form| LANDED_UNHEARD.map(|fault| check(form, fault, 2, [1, 1, 0, 0])));
    join_all(cases).await;
}

#[tokio::test]
async fn lost_unheard_is_sent_again() {
    let cases = FORMS
        .into_iter()
        .flat_map(|form| LOST_UNHEARD.map(|fault| check(form, fault, 2, [1, 0, 0, 0])));
    join_all(cases).await;
}

#[tokio::test]
async fn what_was_not_taken_and_said_so_is_sent_again_without_a_word() {
    let cases =
        FORMS.into_iter().flat_map(|form| TOLD.map(|fault| check(form, fault, 2, [0, 0, 0, 0])));
    join_all(cases).await;
}

/// The second attempt lands first; the late one then finds its own mark, or another instant, or a
/// bucket.
#[tokio::test]
async fn late_is_sent_again_and_lands_once() {
    join_all(FORMS.map(|form| check(form, LATE, 2, [1, 0, 0, 0]))).await;
}

#[tokio::test]
async fn repeated_by_the_wire_lands_once() {
    for form in FORMS {
        check(form, Fault::Twice(NOW), 1, [0, 0, 0, 0]).await;
        check(form, Fault::TwiceAnswerSecond(NOW), 1, [0, 1, 0, 0]).await;
    }
}

/// Faults until it gives up.
async fn check_gives_up(
    form: Form,
    faults: [Fault; 3],
    kind: StoreErrorKind,
    landed: u32,
    counted: [u64; 4],
) {
    let mut rig = Rig::new(Fault::Pass).await;
    let (bucket, balance, consumed) = prepared(&mut rig, form).await;
    rig.script(&faults);
    let error = rig.take(&bucket, 7).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.fate_unknown()),
        (kind, kind == StoreErrorKind::Unavailable),
        "{form:?}, {faults:?}: {error}"
    );
    let sent = rig.sent().await;
    assert_eq!(
        (sent.len(), sent.iter().map(|entry| entry.landings).sum::<u32>()),
        (3, landed),
        "{form:?}, {faults:?}: {sent:?}"
    );
    assert_eq!(
        rig.counted(),
        counted,
        "{form:?}, {faults:?}: sent again, confirmed, unknown, credits unknown"
    );
    if form != Form::Create || landed > 0 {
        let (left, used) = rig.balance(&bucket).await;
        assert_eq!(used, consumed + 7 * i64::from(landed), "{form:?}, {faults:?}");
        // A refill that did not land has not happened.
        assert!(left == balance - 7 || landed == 0, "{form:?}, {faults:?}: {left} of {balance}");
    }
}

#[tokio::test]
async fn no_answer_at_all_is_an_unknown_fate() {
    for form in FORMS {
        check_gives_up(form, [Fault::CloseAfter; 3], StoreErrorKind::Unavailable, 1, [1, 0, 1, 0])
            .await;
        check_gives_up(form, [Fault::CloseBefore; 3], StoreErrorKind::Unavailable, 0, [1, 0, 1, 0])
            .await;
    }
}

#[tokio::test]
async fn refused_by_a_busy_table_is_no_unknown_fate() {
    for form in FORMS {
        check_gives_up(
            form,
            [Fault::Throttle, Fault::Conflict, Fault::Throttle],
            StoreErrorKind::Busy,
            0,
            [0, 0, 0, 0],
        )
        .await;
    }
}

/// The first attempt may have landed, whatever the table said to the others.
#[tokio::test]
async fn a_busy_table_after_a_lost_answer_is_an_unknown_fate() {
    for form in FORMS {
        let faults = [Fault::CloseAfter, Fault::Throttle, Fault::Throttle];
        check_gives_up(form, faults, StoreErrorKind::Unavailable, 1, [1, 0, 1, 0]).await;
        let faults = [Fault::CloseBefore, Fault::Throttle, Fault::Conflict];
        check_gives_up(form, faults, StoreErrorKind::Unavailable, 0, [1, 0, 1, 0]).await;
    }
}

#[tokio::test]
async fn nobody_there_is_no_unknown_fate() {
    let mut rig = Rig::new(Fault::Pass).await;
    let (bucket, ..) = prepared(&mut rig, Form::Fast).await;
    rig.script(&[]);
    rig.nobody().await;
    let error = rig.take(&bucket, 7).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert_eq!(rig.counted(), [0, 0, 0, 0]);
    assert_eq!(rig.balance(&bucket).await, (60, 40));
}

/// Another writer took the mark away before the second attempt: two debits, the safe direction, and
/// it is counted.
#[tokio::test]
async fn a_lost_mark_is_paid_twice_and_counted() {
    let mut rig = Rig::new(Fault::Pass).await;
    let (bucket, ..) = prepared(&mut rig, Form::Fast).await;
    let pk = rig.pk(&bucket);
    rig.interrupt(Fault::CloseAfter, pk, None);
    granted(rig.take(&bucket, 7).await.unwrap());
    assert_eq!(rig.sent().await.iter().map(|entry| entry.landings).sum::<u32>(), 2);
    assert_eq!(rig.counted(), [1, 0, 0, 0]);
    assert_eq!(rig.balance(&bucket).await, (46, 54));
}

/// The first attempt landed, another writer took the mark and the rest away: the answer is a
/// refusal although the amount is spent. Nobody knows, so it is counted as unknown.
#[tokio::test]
async fn a_refusal_after_a_lost_answer_is_an_unknown_fate() {
    let mut rig = Rig::new(Fault::Pass).await;
    let (bucket, ..) = prepared(&mut rig, Form::Fast).await;
    let pk = rig.pk(&bucket);
    rig.interrupt(Fault::CloseAfter, pk, Some(1_000));
    let outcome = rig.take(&bucket, 7).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Refused(_)), "{outcome:?}");
    assert_eq!(rig.sent().await.iter().map(|entry| entry.landings).sum::<u32>(), 1);
    assert_eq!(rig.counted(), [1, 0, 1, 0]);
}

/// A bucket is made and then looked at once more; if that look fails for good, what was taken is
/// given back.
#[tokio::test]
async fn a_bucket_nobody_vouches_for_is_given_back() {
    let mut rig = Rig::new(Fault::Pass).await;
    let (bucket, ..) = prepared(&mut rig, Form::Create).await;
    rig.script(&[]);
    let (mut is_made, mut reads) = (false, 0);
    rig.proxy.plan(move |operation| {
        is_made |= operation == "PutItem";
        reads += u32::from(is_made && operation == "BatchGetItem");
        if is_made && operation == "BatchGetItem" && reads <= 8 {
            Fault::ErrorBefore
        } else {
            Fault::Pass
        }
    });
    let error = rig.take(&bucket, 7).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert_eq!(rig.balance(&bucket).await, (100, 0));
    assert_eq!(rig.counted(), [0, 0, 0, 0]);
}

/// A change of parameters for a request that is refused takes nothing, so losing its answer leaves
/// no debit in doubt.
#[tokio::test]
async fn a_lost_change_of_parameters_is_no_debit() {
    let mut rig = Rig::new(Fault::Pass).await;
    let (bucket, ..) = prepared(&mut rig, Form::Fast).await;
    let mut smaller = Bucket::of(
        "user",
        &[
            zae_limiter_core::Limit::custom("rpm", 10, 1, 1).unwrap(),
            bucket.limits.limits[1].clone(),
        ],
    );
    smaller.limits.source = LimitSource::Call;
    rig.script(&[Fault::CloseBefore; 3]);
    let error = rig.take(&smaller, 50).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert_eq!(rig.sent().await.iter().map(|entry| entry.landings).sum::<u32>(), 0);
    assert_eq!(rig.counted(), [0, 0, 0, 0]);
}
