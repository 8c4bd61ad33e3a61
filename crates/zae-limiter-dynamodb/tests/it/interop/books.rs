//! The books of a bucket that both packages write: every record of the stream, by what it did to
//! what the shards have together. A write of one take or refund leaves balance and use together as
//! they were; what is beyond that is booked here, to the millitoken.

use serde_json::Value;

use crate::interop::table::{text, whole};

/// What became of one limit of a bucket, in millitokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Books {
    /// What the bucket began with.
    pub(crate) begun: i64,
    /// What Python has made by making shards, full.
    pub(crate) minted: i64,
    /// How many shards those were.
    pub(crate) made: usize,
    /// What our splits and repairs have added to all shards together. They move tokens: 0.
    pub(crate) moved: i64,
    /// What shards have regained.
    pub(crate) regained: i64,
    /// The part of it that the time between two refill instants does not explain: 0.
    pub(crate) unearned: i64,
    /// What was granted and not given back.
    pub(crate) granted: i64,
    /// What was cut at a share, or went with a shard that was removed.
    pub(crate) lost: i64,
}

impl Books {
    /// Of `rpd`, a limit with so many millitokens a day, from all records of the bucket of `hot`.
    pub(crate) fn of(events: &[Value], capacity_milli: i64) -> Books {
        let mut books = Books::default();
        for event in events {
            let change = &event["dynamodb"];
            let keys = &change["Keys"];
            if text(&keys["SK"]) == "#STATE" && text(&keys["PK"]).contains("/BUCKET#hot#") {
                books.note(&change["OldImage"], &change["NewImage"], capacity_milli);
            }
        }
        books
    }

    /// What there is to be found: what it began with and was made and regained, less what is gone.
    pub(crate) fn left(&self) -> i64 {
        let had = self.begun + self.minted + self.moved + self.regained;
        had - self.granted - self.lost
    }

    fn note(&mut self, old: &Value, new: &Value, capacity_milli: i64) {
        let (before, after) = (number(old, "b_rpd_tk"), number(new, "b_rpd_tk"));
        if new.is_null() {
            self.lost += before;
            return;
        }
        let used = number(new, "b_rpd_tc") - number(old, "b_rpd_tc");
        self.granted += used;
        let gain = after - before + used;
        if old.is_null() {
            return self.note_made(new, gain);
        }
        // Our splits and repairs stamp the donor, and never count use.
        if old["sp"] != new["sp"] {
            self.moved += gain;
        } else if gain > 0 {
            let passed_ms = number(new, "rf") - number(old, "rf");
            let shards = number(new, "shard_count");
            // A remainder of less than a millitoken may come with it.
            let earned = capacity_milli * passed_ms / (86_400_000 * shards) + 1;
            self.regained += gain;
            self.unearned += (gain - earned).max(0);
        } else {
            self.lost -= gain;
        }
    }

    /// Python makes a shard with a take. Ours are made without; shard 0 of ours is made with one,
    /// and says when its limits were read.
    fn note_made(&mut self, new: &Value, gain: i64) {
        let is_ours = !new["ca"].is_null() || number(new, "b_rpd_tc") == 0;
        match (is_ours, text(&new["PK"]).ends_with("#0")) {
            (true, true) => self.begun += gain,
            (true, false) => self.moved += gain,
            (false, _) => {
                self.minted += gain;
                self.made += 1;
            }
        }
    }
}

/// A number of an image; 0 where there is none.
fn number(image: &Value, name: &str) -> i64 {
    match &image[name] {
        Value::Null => 0,
        found => whole(found),
    }
}
