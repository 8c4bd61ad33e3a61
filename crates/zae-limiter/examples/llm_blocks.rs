//! An LLM gateway with local blocks: a busy key costs a few writes a second, not one per call.
//!
//! On a table of DynamoDB, of the local engine for example:
//!
//! ```text
//! zae-limiter local up --detach --name demo && eval "$(zae-limiter local env)"
//! cargo run -p zae-limiter --features dynamodb --example llm_blocks -- demo
//! ```

use std::error::Error;
use std::io::Write;

use zae_limiter::{Level, LocalBlocks, RateLimiter, Request, Source};

/// What a call really used; known only when the model has answered.
async fn call_the_model(call: u64) -> u64 {
    400 + call % 200
}

/// Serves so many calls of one key, and says what they cost.
pub(crate) async fn serve(
    limiter: &RateLimiter,
    calls: u64,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let limits = ["rpm:600000/min".parse()?, "tpm:300000000/min".parse()?];
    limiter.set_limits(&Level::resource("gpt-4")?, limits).await?;
    // A gateway knows its callers: what every call would look up is looked up once.
    let request = Request::new("key-1", "gpt-4").take("rpm", 1).take("tpm", 600);
    let prepared = limiter.prepare(request)?;
    let mut from_blocks = 0;
    for call in 0..calls {
        let lease = prepared.acquire().await?;
        from_blocks += u64::from(lease.source() == Source::Local);
        // The estimate was 600: the difference goes back into the block, without a write.
        lease.record("tpm", call_the_model(call).await)?;
        lease.commit().await?;
    }
    let blocks = limiter.blocks().expect("switched on below");
    writeln!(out, "{from_blocks} of {calls} calls were served from blocks")?;
    writeln!(out, "{} orders were written", blocks.orders)?;
    limiter.close().await; // gives back what was not used
    let blocks = limiter.blocks().expect("switched on below");
    writeln!(out, "{} of {} tokens bought are lost", blocks.lost, blocks.bought)?;
    Ok(())
}

/// The limiter of the gateway, on a store of any kind.
pub(crate) fn with_blocks(
    builder: zae_limiter::Builder,
) -> Result<RateLimiter, zae_limiter::Error> {
    builder.local_blocks(LocalBlocks::default()).build()
}

#[cfg(feature = "dynamodb")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    use zae_limiter::dynamodb::DynamoStore;
    let stack = std::env::args().nth(1).ok_or("name a stack")?;
    let store = DynamoStore::builder(&stack, "us-east-1").connect().await?;
    let limiter = with_blocks(RateLimiter::builder(store))?;
    serve(&limiter, 10_000, &mut std::io::stdout()).await
}

#[cfg(not(feature = "dynamodb"))]
fn main() {}
