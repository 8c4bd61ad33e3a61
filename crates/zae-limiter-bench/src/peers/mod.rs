//! What we are measured against.

mod bare;
mod disk;
mod memory;
mod redis;

use crate::rows::Entry;

pub(crate) use memory::two_governors;
pub(crate) use redis::Server;

/// Puts every peer beside the row of ours that it is compared with.
pub(crate) fn add(rows: &mut Vec<Entry>) {
    let peers =
        bare::rows().into_iter().chain(disk::rows()).chain(redis::rows()).chain(memory::rows());
    for (neighbour, peer) in peers {
        let place = rows
            .iter()
            .position(|row| row.name == neighbour)
            .expect("the neighbour is a row of ours");
        rows.insert(place + 1, peer);
    }
}

/// The name of the row that a peer follows, and the peer.
type Peer = (&'static str, Entry);
