//! A small DynamoDB-compatible server for development and tests: the `dynoxide` engine, made to
//! behave more like the service where our tests would notice, and a control endpoint beside it.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use zae_limiter_local::{Options, Server};
//!
//! let options = Options { port: 0, ..Options::default() };
//! let server = Server::bind(&options).await?;
//! println!("listening on http://{}", server.address());
//! server.run(std::future::pending()).await
//! # }
//! ```
//!
//! The key decision: the engine's own HTTP server answers every DynamoDB request, bytes untouched,
//! so nothing of its conformance is lost. What we add goes around it: connections that start with
//! `/_zae/` are ours (`front.rs`), and a second connection to the same SQLite database adds an
//! index (`storage.rs`), sweeps TTLs and trims streams (`sweep.rs`).

mod control;
mod front;
mod options;
mod server;
mod storage;
mod sweep;

pub use options::{Command, HELP, Options};
pub use server::Server;
