//! Tasks and answers.

use std::sync::Arc;
use std::time::Duration;

use zae_limiter::{Clock, MemoryStore, RateLimiter};
use zae_limiter_loadtest::report::{Collector, paces};
use zae_limiter_loadtest::worker::{Answer, FORMAT, Source, Task};
use zae_limiter_loadtest::{Interval, Run, Tally};

use crate::rig::Rig;
use crate::tally::{nanos, tally};

const SECOND: Duration = Duration::from_secs(1);

fn tasks(users: u32, workers: u32, duration: Duration) -> Vec<Task> {
    let sources = [Source::Builtin("simple".to_owned())];
    Task::split(("default", &sources), (users, workers), duration, Some(10.0))
}

#[test]
fn no_user_is_left_out_or_there_twice() {
    for (users, workers) in [(1, 1), (7, 3), (100, 10), (3, 8), (10, 7)] {
        let mut numbers: Vec<u32> = tasks(users, workers, SECOND)
            .iter()
            .flat_map(|task| (0..task.users).map(|n| task.numbers.0 + n * task.numbers.1))
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..users).collect::<Vec<_>>(), "{users} users, {workers} workers");
    }
    let rates: f64 = tasks(100, 10, SECOND).iter().filter_map(|task| task.spawn_rate).sum();
    assert!((rates - 10.0).abs() < 1e-9);
    // An answer has room for all intervals of a long run.
    assert!(tasks(10, 2, 840 * SECOND).iter().all(|task| task.interval_ms >= 8_000));
}

#[test]
fn a_task_that_cannot_be_done_is_refused() {
    let good = tasks(2, 1, SECOND).remove(0);
    assert!(good.check().is_ok());
    let wrong = |change: fn(&mut Task), text: &str| {
        let mut task = good.clone();
        change(&mut task);
        let error = task.check().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(text), "{error}");
    };
    wrong(|task| task.format = "other/9".to_owned(), "push the workers again");
    wrong(|task| task.users = 0, "no users");
    wrong(|task| task.scenarios.clear(), "no scenario");
    wrong(|task| task.duration_ms = 0, "no time");
    wrong(|task| task.interval_ms = 0, "no time");
    wrong(|task| task.scenarios = vec![Source::Builtin("x".to_owned())], "no such scenario");
}

#[tokio::test]
async fn the_answers_of_workers_add_up_to_one_report() {
    let store = MemoryStore::new();
    let text = "every_ms = 50\nlimits = [\"rpm:1000000\"]\ntake = { rpm = 1 }\n".to_owned();
    let sources = [Source::Toml { stem: "own".to_owned(), text }];
    let tasks = Task::split(("default", &sources), (5, 3), 2 * SECOND, None);
    let mut collector = Collector::default();
    let mut names = Vec::new();
    for task in tasks {
        let rig = Rig::new();
        let limiter = RateLimiter::builder(store.clone()).clock(rig.clock.clone()).build();
        let limiter = limiter.expect("a limiter");
        let sent: Task = serde_json::from_str(&serde_json::to_string(&task).unwrap()).unwrap();
        assert_eq!(sent, task);
        let scenarios = sent.check().expect("a task");
        scenarios[0].prepare(&limiter, 5).await.expect("limits are stored");
        names = paces(&scenarios);
        let clock: Arc<dyn Clock> = Arc::new(rig.clock.clone());
        let answer = rig.pump(sent.work(&limiter, &scenarios, &clock)).await;
        let sent: Answer = serde_json::from_value(answer.clone().json(usize::MAX)).unwrap();
        assert_eq!(sent, answer);
        sent.intervals.into_iter().for_each(|interval| collector.add(interval));
    }
    let asked = Run { users: 5, workers: 3, duration_s: 2.0, ..Run::default() };
    let report = collector.report(asked, &names, 0);
    assert_eq!((report.total.granted, report.total.errors), (5 * 40, 0));
    assert!(report.complete);
    assert_eq!(report.series.len(), 2);
    assert!(report.series.iter().all(|point| point.users == 5), "{:?}", report.series);
    assert!((report.total.granted_per_s - 100.0).abs() < 0.1);
}

#[test]
fn an_answer_that_is_too_long_loses_no_call() {
    let values = nanos(500).repeat(8);
    let interval = |(number, part): (usize, &[u64])| Interval {
        number: number as u64,
        from_ms: number as u64 * 1_000,
        ms: 1_000,
        users: 4,
        tallies: vec![tally(part), Tally::default()],
    };
    let intervals: Vec<Interval> = values.chunks(500).enumerate().map(interval).collect();
    let answer = Answer { format: FORMAT.to_owned(), intervals };
    let whole = serde_json::to_string(&answer).unwrap().len();
    let json = answer.json(whole * 2 / 3);
    assert!(json.to_string().len() <= whole * 2 / 3);
    let short: Answer = serde_json::from_value(json).unwrap();
    assert!(short.intervals.len() < 8 && short.intervals.len() > 1, "{}", short.intervals.len());
    assert_eq!(short.intervals.iter().map(|it| it.ms).sum::<u64>(), 8_000);
    let mut sum = Tally::default();
    short.intervals.iter().for_each(|it| sum.merge(&it.tallies[0]));
    assert!(sum.granted.slots().eq(tally(&values).granted.slots()));
}
