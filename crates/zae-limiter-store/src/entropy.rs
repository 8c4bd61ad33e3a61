//! Injected randomness.

use std::sync::Mutex;

/// A source of random numbers. Injected, so that a seed replays a whole run.
pub trait Entropy: Send + Sync {
    /// The next 64 random bits.
    fn next_u64(&self) -> u64;
}

/// The operating system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that asks the operating system for randomness"
    )]
    fn next_u64(&self) -> u64 {
        getrandom::u64().expect("the operating system has randomness")
    }
}

/// A repeatable sequence (SplitMix64). Public, because users test with it too.
#[derive(Debug)]
pub struct SeededEntropy(Mutex<u64>);

impl SeededEntropy {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> SeededEntropy {
        SeededEntropy(Mutex::new(seed))
    }
}

impl Entropy for SeededEntropy {
    fn next_u64(&self) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let take = |seed| -> Vec<u64> {
            let entropy = SeededEntropy::new(seed);
            (0..4).map(|_| entropy.next_u64()).collect()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }
}
