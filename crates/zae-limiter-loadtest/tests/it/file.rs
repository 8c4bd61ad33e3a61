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
    wrong("every_ms = 250", "every_ms = 0", &["line 3: every_ms: 0: write 1 or more"]);
    wrong("every_ms = 250", "every_ms = -1", &["line 3: every_ms: -1: write 1 or more"]);
    wrong("every_ms = 250", "every_ms = \"fast\"", &["line 3: every_ms: \"fast\": write 1 or"]);
    wrong("\"tpm:150000\"", "\"tpm\"", &["line 5: limits: tpm: "]);
    wrong("\"tpm:150000\"", "7", &["line 5: limits: 7: write a list of texts, as in ["]);
    wrong(
        "[\"rpm:180/min:20\", \"tpm:150000\"]",
        "\"rpm:1\"",
        &["limits: \"rpm:1\": write a list"],
    );
    wrong("tpm = 800", "tpd = 800", &["line 6: take: tpd: no line of `limits` has this name"]);
    wrong(
        "tpm = 800",
        "tpm = 150_001",
        &["line 6: take: tpm: 150001 is more than its limit ever holds", "at most 150000"],
    );
    wrong(
        "{ rpm = 1, tpm = 800 }",
        "{ rpm = 0 }",
        &["line 6: take: { rpm = 0 }: every call would"],
    );
    wrong("\"tpm:150000\"", "\"rpm:1\"", &["line 5: limits: ", "rpm"]);
    wrong("tpm = 800", "tpm = -8", &["line 6: take: tpm: write a whole number"]);
    wrong("{ rpm = 1, tpm = 800 }", "{}", &["line 6: take: {}: name at least one limit"]);
    wrong("{ rpm = 1, tpm = 800 }", "1", &["line 6: take: 1: name at least one limit"]);
    wrong("[40, 160]", "[160, 40]", &["line 7: cost_pct: [160, 40]: write the smaller one first"]);
    wrong("[20, 120]", "[2, 1]", &["line 8: hold_ms: [2, 1]"]);
    wrong("[20, 120]", "[2]", &["line 8: hold_ms: [2]: write two whole numbers, as in [20, 120]"]);
    wrong("= 3", "= 0", &["line 10: users_per_entity: 0: write 1"]);
    wrong("cascade = true", "cascades = true", &["line 9: cascades: is no field here; use one of"]);
    wrong("cascade = true", "cascade = 1", &["line 9: cascade: 1: write true or false"]);
    wrong("\"gpt-4\"", "\"a b\"", &["line 4: resource: \"a b\": "]);
    wrong("\"gpt-4\"", "4", &["line 4: resource: 4: put the text in quotes"]);
    wrong("name = \"chat\"", "name = \"\"", &["line 2: name: \"\": write a word"]);
}

#[test]
fn a_file_that_is_no_toml_is_told_in_our_words() {
    for (text, words) in [
        ("limits = [\"rpm:1\"\ntake = { rpm = 1 }\n", "cannot be read as TOML; write a line as"),
        ("limits: [1]\n", "line 1: limits: [1]: this cannot be read as TOML"),
        ("name = \"a\n", "line 1: name = \"a: this cannot be read"),
        ("name = chat\n", "line 1: name = chat: this cannot be read"),
        ("name = \"a\"\nname = \"b\"\n", "line 2: name: is given twice; keep one of them"),
        ("take = { rpm = 1 }\n", "limits: is missing; write a list of texts"),
        ("limits = [\"rpm:1\"]\n", "take: is missing; name at least one limit"),
    ] {
        let error = file::parse(text, "x").expect_err(text).to_string();
        assert!(error.contains(words), "{text:?}: {error}");
        for inner in
            ["expected", "unexpected", "invalid", "parse error", "serde", "TOML parse", "|"]
        {
            assert!(!error.contains(inner), "{text:?}: {inner}: {error}");
        }
    }
}
