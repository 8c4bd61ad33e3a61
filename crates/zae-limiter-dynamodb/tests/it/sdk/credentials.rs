//! Credentials that expire, handed out by somebody who is slower than a take may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};
use serde_json::json;
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::sdk::SdkTable;
use zae_limiter_dynamodb::table::{Action, Item, Key, Table, TableError, Update};
use zae_limiter_store::{Clock, ManualClock, SystemClock};

use crate::sdk::canned::{Reply, Server};

/// A request of a take may take this long.
const ATTEMPT: Duration = Duration::from_millis(150);

/// Handing out takes longer.
const SLOW: Duration = Duration::from_millis(500);

/// After this long a renewal may follow another.
const LATER: Duration = Duration::from_secs(11);

/// What is handed out when: how long it takes, and in how many seconds the credentials expire;
/// `None` for a failure.
type Script = &'static [(Duration, Option<u64>)];

/// Hands out `key-0`, `key-1` and so on; the last line of the script for ever.
#[derive(Clone, Debug)]
struct Desk {
    script: Script,
    asked: Arc<AtomicUsize>,
}

impl Desk {
    fn new(script: Script) -> Desk {
        Desk { script, asked: Arc::default() }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    async fn hand_out(&self) -> Result<Credentials, CredentialsError> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        let (delay, lifetime) = self.script[number.min(self.script.len() - 1)];
        SystemClock::new().sleep(delay).await;
        let lifetime =
            lifetime.ok_or_else(|| CredentialsError::provider_error("the desk is closed"))?;
        let now = Duration::from_millis(SystemClock::new().now().0.unsigned_abs());
        let expiry = UNIX_EPOCH + now + Duration::from_secs(lifetime);
        Ok(Credentials::new(format!("key-{number}"), "secret", None, Some(expiry), "desk"))
    }
}

impl ProvideCredentials for Desk {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.hand_out())
    }
}

/// A table that has had its first answer, so that the short timeout counts.
struct Bench {
    server: Server,
    desk: Desk,
    clock: ManualClock,
    table: SdkTable,
}

impl Bench {
    async fn new(script: Script) -> Bench {
        let (server, desk) =
            (Server::start(Reply::ok(&json!({"Attributes": {}}))), Desk::new(script));
        let clock = ManualClock::new(SystemClock::new().now());
        let builder = DynamoStore::builder("test", "us-east-1")
            .endpoint_url(&server.endpoint)
            .timeouts(ATTEMPT, ATTEMPT);
        let table = builder
            .credentials_provider(desk.clone())
            .clock(Arc::new(clock.clone()))
            .table()
            .await
            .unwrap();
        let bench = Bench { server, desk, clock, table };
        bench.update().await.unwrap();
        bench
    }

    async fn update(&self) -> Result<Item, TableError> {
        let key = Key { pk: "a/BUCKET#e#r#0".to_owned(), sk: "#STATE".into() };
        self.table
            .update(&Update {
                key,
                actions: vec![Action::Add("b_rpm_tk".into(), -1000)],
                conditions: vec![],
            })
            .await
    }

    /// How often the desk was asked after this many takes, and whose key the last one used.
    async fn after(&self, takes: u32) -> (usize, String) {
        for _ in 0..takes {
            self.update().await.unwrap();
        }
        (self.desk.asked(), self.key())
    }

    fn key(&self) -> String {
        self.server.seen().last().unwrap().access_key.clone()
    }
}

fn key(number: usize) -> String {
    format!("key-{number}")
}

/// No take waits for credentials that still hold, and the new ones are used once they are there.
#[tokio::test]
async fn a_renewal_goes_on_beside_the_takes() {
    let bench = Bench::new(&[(Duration::ZERO, Some(100)), (SLOW, Some(3600))]).await;
    bench.clock.advance(LATER);
    let mut takes = 0;
    while bench.key() != key(1) {
        bench.update().await.unwrap();
        SystemClock::new().sleep(Duration::from_millis(20)).await;
        takes += 1;
        assert!(takes < 500, "never renewed");
    }
    assert_eq!(bench.desk.asked(), 2);
}

/// Found by review: every take began a renewal anew and cut it off, so none ever ended.
#[tokio::test]
async fn a_renewal_that_is_slower_than_a_take_may_be_ends_all_the_same() {
    let bench = Bench::new(&[(Duration::ZERO, Some(0)), (SLOW, Some(3600))]).await;
    bench.clock.advance(LATER);
    let mut failures = 0;
    while let Err(error) = bench.update().await {
        assert!(matches!(error, TableError::Unknown(_) | TableError::Unreachable(_)), "{error}");
        failures += 1;
        assert!(failures < 50, "never renewed");
    }
    assert!(failures > 0, "the desk was not slow");
    assert_eq!((bench.desk.asked(), bench.key()), (2, key(1)));
}

/// Whoever was asked may never answer, and must not be waited for until the process ends.
#[tokio::test]
async fn a_renewal_that_never_ends_is_begun_anew() {
    let bench = Bench::new(&[
        (Duration::ZERO, Some(0)),
        (Duration::MAX, None),
        (Duration::ZERO, Some(3600)),
    ])
    .await;
    bench.clock.advance(LATER);
    for _ in 0..2 {
        assert!(matches!(bench.update().await, Err(TableError::Unknown(_))));
    }
    assert_eq!(bench.desk.asked(), 2);
    bench.clock.advance(Duration::from_secs(61));
    assert_eq!(bench.after(1).await, (3, key(2)));
}

/// A desk that is closed is left alone for a while, as long as there is something to work with.
#[tokio::test]
async fn a_failed_renewal_does_not_stop_takes() {
    let bench = Bench::new(&[(Duration::ZERO, Some(100)), (Duration::ZERO, None)]).await;
    for renewals in 0..3 {
        assert_eq!(bench.after(10).await, (1 + renewals, key(0)));
        bench.clock.advance(LATER);
    }
}

/// A desk that hands out what expires soon is not asked by every take.
#[tokio::test]
async fn credentials_that_always_expire_soon_are_not_renewed_by_every_take() {
    let bench = Bench::new(&[(Duration::ZERO, Some(100))]).await;
    for renewals in 0..3 {
        assert_eq!(bench.after(10).await, (1 + renewals, key(renewals)));
        bench.clock.advance(LATER);
    }
}

/// Without anything to work with the failure is told as what it is.
#[tokio::test]
async fn a_failure_without_credentials_is_told() {
    let bench = Bench::new(&[(Duration::ZERO, Some(0)), (Duration::ZERO, None)]).await;
    bench.clock.advance(LATER);
    for _ in 0..2 {
        let error = bench.update().await.unwrap_err();
        assert!(
            matches!(&error, TableError::Denied(why) if why.contains("the desk is closed")),
            "{error}"
        );
    }
    assert_eq!(bench.server.seen().len(), 1, "sent with credentials that have expired");
}
