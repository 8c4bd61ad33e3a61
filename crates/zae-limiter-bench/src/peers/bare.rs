//! The least that SQLite can do for a limiter: one prepared statement, on the file of our own rows.

use anyhow::{Result, ensure};
use rusqlite::{Connection, Statement};
use zae_limiter::{Clock, SystemClock};

use super::Peer;
use crate::cell::{Cell, Direct, Row, Sample};
use crate::keys::{self, KEYS, REQUESTS, TOKENS, pick};
use crate::rows::{Context, Entry};

/// Two limits, each with balance, capacity, refill, period and what was consumed; as many columns
/// as our row has numbers.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS bare (
  key TEXT PRIMARY KEY, at INTEGER NOT NULL,
  b1 INTEGER NOT NULL, c1 INTEGER NOT NULL, r1 INTEGER NOT NULL, p1 INTEGER NOT NULL, n1 INTEGER NOT NULL,
  b2 INTEGER NOT NULL, c2 INTEGER NOT NULL, r2 INTEGER NOT NULL, p2 INTEGER NOT NULL, n2 INTEGER NOT NULL
) STRICT, WITHOUT ROWID";

const INSERT: &str =
    "INSERT INTO bare VALUES (?1, ?2, ?3, ?3, 1000000000, 60000, 0, ?3, ?3, 1000000000, 60000, 0)";

const UPDATE: &str = "UPDATE bare SET at = ?2,
  b1 = min(c1, b1 + (?2 - at) * r1 / p1) - ?3, n1 = n1 + ?3,
  b2 = min(c2, b2 + (?2 - at) * r2 / p2) - ?4, n2 = n2 + ?4
WHERE key = ?1 AND min(c1, b1 + (?2 - at) * r1 / p1) >= ?3 AND min(c2, b2 + (?2 - at) * r2 / p2) >= ?4
RETURNING b1, b2";

const CAPACITY_MILLI: i64 = 1_000_000_000_000_000_000;

pub(super) fn rows() -> Vec<Peer> {
    vec![(
        "sqlite-store",
        Entry {
            name: "bare-update",
            what: "rusqlite, one prepared UPDATE … RETURNING, same file",
            make: row,
        },
    )]
}

struct Bare {
    conn: Connection,
    keys: Vec<String>,
}

fn row(context: &Context) -> Result<Box<dyn Row>> {
    let conn = Connection::open(context.normal_path()?)?;
    let mode: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    ensure!(mode == "wal", "our file has a write-ahead log");
    conn.execute_batch(
        "PRAGMA synchronous = NORMAL; PRAGMA cache_size = -16384; PRAGMA wal_autocheckpoint = 8000",
    )?;
    conn.execute_batch(CREATE)?;
    let keys = keys::texts(KEYS);
    conn.execute_batch("BEGIN")?;
    for key in &keys {
        conn.execute(INSERT, (key, SystemClock::new().now().0, CAPACITY_MILLI))?;
    }
    conn.execute_batch("COMMIT")?;
    Ok(Box::new(Bare { conn, keys }))
}

impl Row for Bare {
    fn run(&mut self, cell: Cell) -> Result<Sample> {
        let mut update = self.conn.prepare(UPDATE)?;
        let clock = SystemClock::new();
        Direct::new(|random| take(&mut update, pick(&self.keys, random), clock.now().0), 1)
            .run(cell)
    }
}

fn take(update: &mut Statement<'_>, key: &String, now: i64) {
    let milli = |tokens: u64| i64::try_from(tokens * 1000).expect("a small number");
    let mut rows = update.query((key, now, milli(REQUESTS), milli(TOKENS))).expect("a query");
    let row = rows.next().expect("an answer").expect("a grant");
    let balances: (i64, i64) = (row.get(0).expect("a balance"), row.get(1).expect("a balance"));
    assert!(balances.0 >= 0 && balances.1 >= 0);
    // Only at its end does the statement commit.
    assert!(rows.next().expect("an end").is_none());
}
