//! What the writes that went over the wire mean.

use std::collections::BTreeMap;

use serde_json::Value;
use zae_limiter_testkit::engine::proxy::{Exchange, Fault};

/// One write of a bucket as it was sent, and how often it landed.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) pk: String,
    /// Debits carry one, credits do not.
    pub(crate) nonce: Option<String>,
    /// What it adds to the consumption of each limit when it lands, in millitokens.
    pub(crate) counts: BTreeMap<String, i64>,
    pub(crate) is_put: bool,
    pub(crate) fault: Fault,
    pub(crate) landings: u32,
}

impl Entry {
    /// `None` for what is no write of a bucket.
    pub(crate) fn read(exchange: &Exchange) -> Option<Entry> {
        let request = &exchange.request;
        let is_put = exchange.operation == "PutItem";
        let pk = if is_put { &request["Item"]["PK"]["S"] } else { &request["Key"]["PK"]["S"] }
            .as_str()?
            .to_owned();
        if !exchange.is_write() || !pk.contains("/BUCKET#") {
            return None;
        }
        let (nonce, counts) = if is_put { read_put(request) } else { read_update(request) };
        Some(Entry {
            pk,
            nonce,
            counts,
            is_put,
            fault: exchange.fault,
            landings: exchange.landings,
        })
    }

    pub(crate) fn is_credit(&self) -> bool {
        self.nonce.is_none()
    }

    /// What really happened to the consumption of a limit.
    pub(crate) fn counted(&self, limit: &str) -> i64 {
        self.counts.get(limit).copied().unwrap_or(0) * i64::from(self.landings)
    }
}

fn read_put(request: &Value) -> (Option<String>, BTreeMap<String, i64>) {
    let item = request["Item"].as_object().unwrap();
    let nonce = item.get("lw").and_then(|nonce| nonce["S"].as_str()).map(ToOwned::to_owned);
    let counts = item
        .iter()
        .filter_map(|(name, value)| Some((consumption_of(name)?, number(value))))
        .collect();
    (nonce, counts)
}

/// Reads `SET lw=:0,… ADD #1 :1,… REMOVE …`, the only forms that are rendered: names stand as they
/// are or have an alias.
fn read_update(request: &Value) -> (Option<String>, BTreeMap<String, i64>) {
    let name = |word: &str| match word.starts_with('#') {
        true => request["ExpressionAttributeNames"][word].as_str().unwrap().to_owned(),
        false => word.to_owned(),
    };
    let value = |alias: &str| request["ExpressionAttributeValues"][alias].clone();
    let (mut nonce, mut counts, mut section) = (None, BTreeMap::new(), "");
    let expression = request["UpdateExpression"].as_str().unwrap().replace(',', " , ");
    let mut words = expression.split_whitespace().filter(|word| *word != ",").peekable();
    while let Some(word) = words.next() {
        match (word, section) {
            ("SET" | "ADD" | "DELETE" | "REMOVE", _) => section = word,
            (clause, "SET") => {
                let (left, right) = clause.split_once('=').unwrap();
                if name(left) == "lw" {
                    nonce = value(right)["S"].as_str().map(ToOwned::to_owned);
                }
            }
            (left, "ADD") => {
                let amount = number(&value(words.next().unwrap()));
                if let Some(limit) = consumption_of(&name(left)) {
                    counts.insert(limit, amount);
                }
            }
            _ => {}
        }
    }
    (nonce, counts)
}

/// The limit an attribute counts the consumption of.
fn consumption_of(attribute: &str) -> Option<String> {
    let limit = attribute.strip_prefix("b_")?.strip_suffix("_tc")?;
    (limit != "wcu").then(|| limit.to_owned())
}

fn number(value: &Value) -> i64 {
    value["N"].as_str().unwrap().parse().unwrap()
}
