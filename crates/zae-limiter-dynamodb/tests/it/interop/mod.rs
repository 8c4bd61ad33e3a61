//! One table, two products: this crate and the Python zae-limiter 0.17.0, live, on a table made by
//! us and on one made by it.
//!
//! `ZAEL_TEST_PYTHON` names a Python that has `zae-limiter==0.17.0`; `.ci/interop` installs one and
//! runs this. Without it every test here says SKIPPED and passes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod books;
mod config;
mod items;
mod python;
mod records;
mod shards;
mod sharing;
mod table;
mod unsupported;

/// Makes two tests of each function: on a table made by us, and on one made by the Python package.
macro_rules! on_both_tables {
    ($($(#[$doc:meta])* async fn $name:ident($shared:ident: Shared) $body:block)*) => {
        $(
            mod $name {
                use super::*;

                $(#[$doc])*
                async fn test($shared: Shared) $body

                #[tokio::test]
                async fn on_our_table() {
                    if let Some(shared) = Shared::start(crate::interop::table::Made::ByUs).await {
                        test(shared).await;
                    }
                }

                #[tokio::test]
                async fn on_a_table_of_python() {
                    if let Some(shared) = Shared::start(crate::interop::table::Made::ByPython).await {
                        test(shared).await;
                    }
                }
            }
        )*
    };
}
pub(crate) use on_both_tables;
