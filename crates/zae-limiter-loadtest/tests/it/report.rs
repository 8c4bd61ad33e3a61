//! What a run came to, as JSON and as a page.

use std::time::Duration;

use zae_limiter_loadtest::report::{Collector, FORMAT};
use zae_limiter_loadtest::{Options, Outcome, Pacing, Report, Run, html};

use crate::rig::{MS, Rig};

fn mixed(_: u32, call: u64) -> (Duration, Outcome) {
    match call % 10 {
        7 => (MS, Outcome::Refused),
        9 => (4 * MS, Outcome::Failed("unavailable".to_owned())),
        n => (MS * u32::try_from(n + 1).unwrap_or(1), Outcome::Granted),
    }
}

async fn report() -> Report {
    let rig = Rig::new().scenario("mixed", Pacing::Every(50 * MS), mixed);
    rig.report(&Options::new(4, Duration::from_secs(3))).await
}

#[tokio::test]
async fn the_parts_add_up() {
    let report = report().await;
    let total = &report.total;
    assert_eq!((total.granted, total.refused, total.errors), (4 * 48, 4 * 6, 4 * 6));
    assert_eq!(total.errors_by_kind["unavailable"], 24);
    assert_eq!((report.series.len(), report.elapsed_s, report.complete), (3, 3.0, true));
    let of_series: f64 = report.series.iter().map(|point| point.granted_per_s).sum();
    assert!((of_series - 192.0).abs() < 0.5, "{of_series}");
    assert_eq!(total.histogram_ns.count(), total.granted);
    assert_eq!(report.series.iter().map(|point| point.refused).sum::<u64>(), total.refused);
    assert_eq!(report.format, FORMAT);
    let read: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(read, report);
}

#[tokio::test]
async fn more_errors_than_allowed_are_told() {
    let rig = Rig::new().scenario("mixed", Pacing::Every(50 * MS), mixed);
    let (intervals, _) = rig.run(&Options::new(4, Duration::from_secs(3)), None).await;
    let mut collector = Collector::default();
    intervals.into_iter().for_each(|interval| collector.add(interval));
    let scenarios = [("mixed".to_owned(), Pacing::Every(50 * MS))];
    for (most, expected) in
        [(None, false), (Some(0.0), true), (Some(9.99), true), (Some(10.0), false)]
    {
        let asked = Run { max_errors_pct: most, ..Run::default() };
        let report = collector.report(asked, &scenarios, 0);
        assert_eq!((report.total.errors_pct, report.too_many_errors), (10.0, expected), "{most:?}");
    }
    let nothing = Run { max_errors_pct: Some(0.0), ..Run::default() };
    assert!(!Collector::default().report(nothing, &scenarios, 0).too_many_errors);
}

#[tokio::test]
async fn the_page_asks_for_nothing_and_no_name_gets_out_of_its_script() {
    let mut report = report().await;
    report.scenarios[0].scenario = "</script><b>".to_owned();
    let page = html::page(&report);
    assert!(!page.contains("</script><b>"), "the text is in the script only");
    assert_eq!(page.matches("</script>").count(), 1);
    for word in ["http:", "https:", "src=", "@import", "url("] {
        let found = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!found.contains(word), "{word}");
    }
    assert!(page.contains("Content-Security-Policy"));
    assert!(html::live().contains("const embedded = null;"));
}
