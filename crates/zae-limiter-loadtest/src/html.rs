//! A report as one page: no request, no script of others. The live page is the same one, which asks
//! for the report again.

use crate::report::Report;

const PAGE: &str = include_str!("report.html");

/// The page of a finished run.
#[must_use]
pub fn page(report: &Report) -> String {
    filled(&json(report))
}

/// The page that asks the server it comes from for the report, every second, until that is final.
#[must_use]
pub fn live() -> String {
    filled("null")
}

/// The report as JSON that can stand in a script: no text of it ends the script.
fn json(report: &Report) -> String {
    serde_json::to_string(report).unwrap_or_else(|_| "null".to_owned()).replace('<', "\\u003c")
}

fn filled(json: &str) -> String {
    PAGE.replacen("/*REPORT*/null", json, 1)
}
