//! Who calls, and what for: the same for every row.

use zae_limiter::{EntityId, Limit, ResourceName};

/// Requests are counted one by one, tokens by the hundred.
pub(crate) const REQUESTS: u64 = 1;
pub(crate) const TOKENS: u64 = 500;

/// The usual number of keys.
pub(crate) const KEYS: usize = 1_000;

pub(crate) const RESOURCE: &str = "gpt-4";

/// Keys of 28 bytes.
pub(crate) fn texts(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("org-0007.project-03.{number:08}")).collect()
}

pub(crate) fn entities(count: usize) -> Vec<EntityId> {
    texts(count).iter().map(|text| text.parse().expect("a valid entity id")).collect()
}

pub(crate) fn resource() -> ResourceName {
    RESOURCE.parse().expect("a valid resource name")
}

/// Two limits that never refuse and, once used, are never full again: every take refills.
pub(crate) fn wide() -> [Limit; 2] {
    ["rpm:1000000/min:1000000000000000", "tpm:1000000/min:1000000000000000"]
        .map(|text| text.parse().expect("a valid limit"))
}

/// Two limits that refuse everything after the first take.
pub(crate) fn narrow() -> [Limit; 2] {
    ["rpm:1/day:1", "tpm:1/day:500"].map(|text| text.parse().expect("a valid limit"))
}

/// Numbers without an order that matters: xorshift.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// One of `all`.
pub(crate) fn pick<T>(all: &[T], random: u64) -> &T {
    let place = (random >> 20) % all.len() as u64;
    &all[usize::try_from(place).expect("smaller than a length")]
}
