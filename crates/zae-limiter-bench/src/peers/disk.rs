//! How often this disk can be asked to keep something.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use anyhow::Result;

use super::Peer;
use crate::cell::{Direct, Row};
use crate::rows::{Context, Entry};

const PAGE: usize = 4096;
/// The file is written once and then over again, as a log is that has reached its size.
const PAGES: u64 = 1024;

pub(super) fn rows() -> Vec<Peer> {
    vec![(
        "sqlite-full-64",
        Entry {
            name: "fdatasync",
            what: "pwrite 4 KiB + fdatasync, one after the other",
            make: row,
        },
    )]
}

fn row(context: &Context) -> Result<Box<dyn Row>> {
    let file = OpenOptions::new().create_new(true).write(true).open(context.file("floor"))?;
    let page = vec![7; PAGE];
    for number in 0..PAGES {
        file.write_all_at(&page, number * PAGE as u64)?;
    }
    file.sync_all()?;
    let mut next = 0;
    let write = move |_| {
        file.write_all_at(&page, next % PAGES * PAGE as u64).expect("a write");
        file.sync_data().expect("a sync");
        next += 1;
    };
    Ok(Box::new(Direct::new(write, 1)))
}
