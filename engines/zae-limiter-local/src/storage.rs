//! Where the data is, and the repairs the engine's database needs to behave like the service.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use dynoxide::Database;

/// What the engine leaves out. Runs once per start; each statement is safe on a database that
/// already has it.
///
/// - The index: the engine asks for the highest sequence number of a table at every streamed write,
///   by a scan of all records ever written. Without it 6000 writes fall from 8500 to 1500 a second,
///   with it they stay at 16000. `shard_id` is in it so that `DescribeStream` need not read the
///   records.
/// - The triggers: a stream ends with its table and when it is enabled anew, so a table made again
///   under the same name does not show the records of the old one; and, like in the service, a
///   write that changes nothing makes no record. The images are unordered JSON, so they are
///   compared node by node; of equal length, one inside the other is equal.
const REPAIRS: &str = "
    CREATE INDEX IF NOT EXISTS zae_stream_order
      ON _stream_records (table_name, CAST(sequence_number AS INTEGER), shard_id);
    CREATE TRIGGER IF NOT EXISTS zae_stream_dropped AFTER DELETE ON _tables BEGIN
      DELETE FROM _stream_records WHERE table_name = OLD.table_name;
    END;
    CREATE TRIGGER IF NOT EXISTS zae_stream_renewed AFTER UPDATE OF stream_label ON _tables
      WHEN NEW.stream_label IS NOT OLD.stream_label BEGIN
      DELETE FROM _stream_records WHERE table_name = OLD.table_name;
    END;
    CREATE TRIGGER IF NOT EXISTS zae_stream_unchanged BEFORE INSERT ON _stream_records
      WHEN NEW.event_name = 'MODIFY' AND length(NEW.new_image) = length(NEW.old_image) AND NOT EXISTS (
        SELECT fullkey, type, atom FROM json_tree(NEW.new_image) EXCEPT SELECT fullkey, type, atom FROM json_tree(NEW.old_image)
      ) BEGIN
      SELECT RAISE(IGNORE);
    END;
";

/// The database of the engine, and a second connection to it for what the engine does not offer.
///
/// In memory is SQLite's `memdb` and not the engine's own `:memory:`, which no second connection
/// can reach. Measured, in writes per second without a stream: `:memory:` 24800, `memdb` 24300, a
/// file on tmpfs 20300, a file on disk 5400. A shared cache is as fast as `memdb`, but answers
/// "locked" at once where `memdb` waits its turn.
pub(crate) struct Storage {
    /// Of the engine's HTTP server.
    database: Database,
    /// Ours. It waits for the lock of the engine's connection, and the other way round, up to five
    /// seconds.
    own: Mutex<dynoxide::storage::Storage>,
    /// Held as long as the file is in use.
    _lock: Option<File>,
}

impl Storage {
    /// A database that ends with the process.
    pub(crate) fn memory() -> Result<Storage> {
        // The names of `memdb` databases are those of one process; each call is a database of its
        // own.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Storage::open(&format!("file:/zae-limiter-local-{number}?vfs=memdb"), None)
    }

    /// A database in a file, which only its owner can read. Every answered write has reached the
    /// disk.
    pub(crate) fn file(path: &Path) -> Result<Storage> {
        // An absolute path is never taken for one of SQLite's `file:` addresses.
        let path = std::path::absolute(path).with_context(|| format!("{}", path.display()))?;
        let text =
            path.to_str().with_context(|| format!("{} is not valid UTF-8", path.display()))?;
        let mut name = path.clone().into_os_string();
        name.push(".lock");
        let lock = private(Path::new(&name))?;
        match lock.try_lock() {
            Ok(()) => {}
            // Two servers would not see each other's tables: the engine caches their descriptions.
            Err(TryLockError::WouldBlock) => {
                bail!("{} is in use by another zae-limiter-local", path.display())
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("{text}.lock cannot be locked"));
            }
        }
        private(&path)?;
        Storage::open(text, Some(lock))
            .with_context(|| format!("{} cannot be opened as a database", path.display()))
    }

    fn open(name: &str, lock: Option<File>) -> Result<Storage> {
        let database = Database::new(name)?;
        let own = dynoxide::storage::Storage::new(name)?;
        own.conn().execute_batch(REPAIRS).context("the stream index cannot be created")?;
        Ok(Storage { database, own: Mutex::new(own), _lock: lock })
    }

    /// For the engine's server.
    pub(crate) fn database(&self) -> Database {
        self.database.clone()
    }

    /// Whether the data outlives the process.
    pub(crate) fn is_file(&self) -> bool {
        self._lock.is_some()
    }

    /// Runs `work` on our own connection. Blocks; no transaction is left open when `work` fails.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&dynoxide::storage::Storage) -> Result<T>,
    ) -> Result<T> {
        let own = self.own.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let result = work(&own);
        if !own.conn().is_autocommit() {
            own.rollback()?;
        }
        result
    }
}

/// Opens the file, made readable and writable for its owner only if it is new.
fn private(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).with_context(|| format!("{} cannot be opened", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::path::PathBuf;

    use serde_json::{Value, json};

    use crate::sweep;

    const NOW: u64 = 1_800_000_000;

    /// Goes away with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Folder {
            static COUNT: AtomicU64 = AtomicU64::new(0);
            let name = format!(
                "zae-limiter-local-{}-{}",
                std::process::id(),
                COUNT.fetch_add(1, Ordering::Relaxed)
            );
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir(&folder).unwrap();
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A table `table` with a sort key, an index of each kind, a TTL and a stream.
    fn with_table() -> Storage {
        let storage = Storage::memory().unwrap();
        create(&storage);
        storage
    }

    fn create(storage: &Storage) {
        let key = |name: &str, kind: &str| json!({"AttributeName": name, "KeyType": kind});
        let index = |name: &str, hash: &str, range: &str| json!({"IndexName": name, "KeySchema": [key(hash, "HASH"), key(range, "RANGE")], "Projection": {"ProjectionType": "ALL"}});
        let attributes: Vec<Value> = ["PK", "SK", "G"]
            .iter()
            .map(|name| json!({"AttributeName": name, "AttributeType": "S"}))
            .collect();
        let table = json!({
            "TableName": "table",
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": attributes,
            "KeySchema": [key("PK", "HASH"), key("SK", "RANGE")],
            "GlobalSecondaryIndexes": [index("global", "G", "PK")],
            "LocalSecondaryIndexes": [index("local", "PK", "G")],
            "StreamSpecification": {"StreamEnabled": true, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        });
        storage.database.create_table(serde_json::from_value(table).unwrap()).unwrap();
        let ttl = json!({"TableName": "table", "TimeToLiveSpecification": {"Enabled": true, "AttributeName": "ttl"}});
        storage.database.update_time_to_live(serde_json::from_value(ttl).unwrap()).unwrap();
    }

    fn put(storage: &Storage, key: &str, ttl: Value) {
        let item = json!({"PK": {"S": key}, "SK": {"S": "s"}, "G": {"S": "g"}, "ttl": ttl, "map": {"M": {"a": {"N": "1"}, "b": {"N": "2"}}}});
        let put = json!({"TableName": "table", "Item": item});
        storage.database.put_item(serde_json::from_value(put).unwrap()).unwrap();
    }

    fn left(storage: &Storage) -> Vec<String> {
        let scan = storage
            .database
            .scan(serde_json::from_value(json!({"TableName": "table"})).unwrap())
            .unwrap();
        let scan = serde_json::to_value(scan).unwrap();
        let mut keys: Vec<String> = scan["Items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["PK"]["S"].as_str().unwrap().into())
            .collect();
        keys.sort();
        keys
    }

    /// Event names, and the principal where there is one.
    fn records(storage: &Storage) -> Vec<String> {
        let sql = "SELECT event_name || ifnull(' ' || json_extract(user_identity, '$.principalId'), '') FROM _stream_records ORDER BY id";
        let own = storage.own.lock().unwrap();
        let mut statement = own.conn().prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    fn count(storage: &Storage, index: &str) -> u64 {
        let query = match index {
            "global" => {
                json!({"KeyConditionExpression": "G = :v", "ExpressionAttributeValues": {":v": {"S": "g"}}})
            }
            _ => {
                json!({"KeyConditionExpression": "PK = :v", "ExpressionAttributeValues": {":v": {"S": "old"}}})
            }
        };
        let mut query = query;
        query["TableName"] = json!("table");
        query["IndexName"] = json!(index);
        let found = storage.database.query(serde_json::from_value(query).unwrap()).unwrap();
        serde_json::to_value(found).unwrap()["Count"].as_u64().unwrap()
    }

    #[test]
    fn only_expired_items_are_swept_from_table_and_indexes() {
        let storage = with_table();
        put(&storage, "old", json!({"N": (NOW - 1).to_string()}));
        put(&storage, "now", json!({"N": NOW.to_string()}));
        put(&storage, "text", json!({"S": "1"}));
        put(&storage, "forgotten", json!({"N": "1000"}));
        put(&storage, "fraction", json!({"N": "1799999999.5"}));
        assert_eq!((count(&storage, "global"), count(&storage, "local")), (5, 1));
        storage.with(|own| sweep::trim_streams(own, None)).unwrap();
        let swept = storage.with(|own| sweep::sweep_ttl(own, NOW)).unwrap();
        assert_eq!(swept["table"], 1);
        assert_eq!(left(&storage), ["forgotten", "fraction", "now", "text"]);
        assert_eq!((count(&storage, "global"), count(&storage, "local")), (4, 0));
        assert_eq!(records(&storage), ["REMOVE dynamodb.amazonaws.com"]);
    }

    #[test]
    fn a_sweep_goes_beyond_its_first_page() {
        let storage = with_table();
        for number in 0..250 {
            put(&storage, &format!("key-{number}"), json!({"N": (NOW - number % 2).to_string()}));
        }
        assert_eq!(storage.with(|own| sweep::sweep_ttl(own, NOW)).unwrap()["table"], 125);
        assert_eq!(left(&storage).len(), 125);
    }

    #[test]
    fn a_write_that_changes_nothing_makes_no_record() {
        let storage = with_table();
        // Often enough that the attributes, which have no order, come in different ones.
        for _ in 0..20 {
            put(&storage, "same", json!({"N": "5"}));
        }
        put(&storage, "same", json!({"N": "6"}));
        put(&storage, "same", json!({"S": "6"}));
        assert_eq!(records(&storage), ["INSERT", "MODIFY", "MODIFY"]);
    }

    #[test]
    fn a_stream_ends_with_its_table_and_when_it_starts_anew() {
        let storage = with_table();
        put(&storage, "one", json!({"N": "5"}));
        storage
            .database
            .delete_table(serde_json::from_value(json!({"TableName": "table"})).unwrap())
            .unwrap();
        create(&storage);
        assert!(records(&storage).is_empty());
        put(&storage, "two", json!({"N": "5"}));
        for enabled in [false, true] {
            let stream = match enabled {
                true => json!({"StreamEnabled": true, "StreamViewType": "NEW_IMAGE"}),
                false => json!({"StreamEnabled": false}),
            };
            let update = json!({"TableName": "table", "StreamSpecification": stream});
            storage.database.update_table(serde_json::from_value(update).unwrap()).unwrap();
        }
        assert!(records(&storage).is_empty());
    }

    #[test]
    fn a_trim_of_one_table_keeps_the_record_it_names_and_what_follows() {
        let storage = with_table();
        for number in 0..5 {
            put(&storage, &format!("key-{number}"), json!({"N": "5"}));
        }
        let number = "SELECT sequence_number FROM _stream_records ORDER BY id LIMIT 1 OFFSET 3";
        let third: i64 = storage
            .with(|own| Ok(own.conn().query_row(number, [], |row| row.get::<_, String>(0))?))
            .unwrap()
            .parse()
            .unwrap();
        let shown = format!("1{third:020}");
        let trim = |table: &'static str| {
            storage.with(|own| sweep::trim_table(own, table, &shown)).unwrap()
        };
        assert_eq!((trim("other"), trim("table"), trim("table")), (0, 3, 0));
        assert_eq!(records(&storage).len(), 2);
        assert!(storage.with(|own| sweep::trim_table(own, "table", "5")).is_err());
    }

    #[test]
    fn sweeps_trims_and_writes_wait_for_each_other() {
        let storage = with_table();
        let folder = Folder::new();
        let on_disk = Storage::file(&folder.0.join("x.db")).unwrap();
        create(&on_disk);
        for storage in [&storage, &on_disk] {
            std::thread::scope(|scope| {
                for writer in 0..3 {
                    scope.spawn(move || {
                        for number in 0..100 {
                            put(
                                storage,
                                &format!("{writer}-{number}"),
                                json!({"N": (NOW - number % 2).to_string()}),
                            );
                        }
                    });
                }
                for _ in 0..30 {
                    storage.with(|own| sweep::sweep_ttl(own, NOW)).unwrap();
                    storage.with(|own| sweep::trim_streams(own, None)).unwrap();
                }
            });
            storage.with(|own| sweep::sweep_ttl(own, NOW)).unwrap();
            assert_eq!(left(storage).len(), 150);
        }
    }

    #[test]
    fn a_file_is_private_and_belongs_to_one_server() {
        let folder = Folder::new();
        let path = folder.0.join("x.db");
        let first = Storage::file(&path).unwrap();
        #[cfg(unix)]
        for file in ["x.db", "x.db-wal", "x.db.lock"] {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(
                folder.0.join(file).metadata().unwrap().permissions().mode() & 0o777,
                0o600,
                "{file}"
            );
        }
        let error = Storage::file(&path).err().expect("in use").to_string();
        assert!(error.contains("in use"), "{error}");
        drop(first);
        assert!(Storage::file(&path).unwrap().is_file());
    }
}
