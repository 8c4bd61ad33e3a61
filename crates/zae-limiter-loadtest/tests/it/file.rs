//! Scenarios of files.

use std::time::Duration;

use zae_limiter_loadtest::{Pacing, file};

const WHOLE: &str = r#"
name = "chat"
every_ms = 250
resource = "gpt-4"
limits = ["rpm:180/min:20", "tpm:150000"]
take = { rpm = 1, tpm = 800 }
cost_pct = [40, 160]
hold_ms = [20, 120]
cascade = true
users_per_entity = 3
"#;

#[test]
fn every_field_is_read() {
    let plan = file::parse(WHOLE, "stem").expect("a scenario");
    assert_eq!(plan.name, "chat");
    assert_eq!(plan.pacing, Pacing::Every(Duration::from_millis(250)));
    assert_eq!((plan.resource.as_str(), plan.limits.len()), ("gpt-4", 2));
    assert_eq!(plan.take, [("rpm".to_owned(), 1), ("tpm".to_owned(), 800)]);
    assert_eq!(plan.cost_pct, Some((40, 160)));
    assert_eq!(plan.hold, (Duration::from_millis(20), Duration::from_millis(120)));
    assert!(plan.cascade && plan.users_per_entity == 3);
    let least = file::parse("limits = [\"rpm:10\"]\ntake = { rpm = 1 }", "stem").expect("one");
    assert_eq!((least.name.as_str(), least.pacing), ("stem", Pacing::ClosedLoop));
}

#[test]
fn a_wrong_field_is_named_with_its_value_and_the_fix() {
    let wrong = |from: &str, to: &str, texts: &[&str]| {
        let error = file::parse(&WHOLE.replace(from, to), "x").expect_err(to).to_string();
        assert!(texts.iter().all(|text| error.contains(text)), "{to}: {error}");
    };
    wrong("every_ms = 250", "every_ms = 0", &["every_ms: 0: write 1 or more"]);
    wrong("every_ms = 250", "every_ms = -1", &["every_ms"]);
    wrong("\"tpm:150000\"", "\"tpm\"", &["limits: tpm: "]);
    wrong("tpm = 800", "tpd = 800", &["take: tpd: no line of `limits` has this name"]);
    wrong("tpm = 800", "tpm = -8", &["take: tpm: write a whole number"]);
    wrong("{ rpm = 1, tpm = 800 }", "{}", &["take: {}: name at least one limit"]);
    wrong("[40, 160]", "[160, 40]", &["cost_pct: [160, 40]: write the smaller one first"]);
    wrong("[20, 120]", "[2, 1]", &["hold_ms: [2, 1]"]);
    wrong("users_per_entity = 3", "users_per_entity = 0", &["users_per_entity: 0: write 1"]);
    wrong("cascade = true", "cascades = true", &["unknown field", "cascades"]);
    wrong("\"gpt-4\"", "\"a b\"", &["resource: a b: "]);
    wrong("name = \"chat\"", "name = \"\"", &["name: "]);
}
