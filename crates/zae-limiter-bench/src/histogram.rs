//! Latencies, to about 3 %.

/// Steps between a power of two and the next.
const STEPS: u64 = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// Counts of values in slots that grow with them.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    slots: Vec<u64>,
    count: u64,
}

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram { slots: vec![0; slot_of(u64::MAX) + 1], count: 0 }
    }

    pub(crate) fn add(&mut self, value: u64) {
        self.slots[slot_of(value)] += 1;
        self.count += 1;
    }

    pub(crate) fn merge(&mut self, other: &Histogram) {
        self.slots.iter_mut().zip(&other.slots).for_each(|(ours, theirs)| *ours += theirs);
        self.count += other.count;
    }

    /// The value that `per_mille` of 1000 values do not exceed; 0 when there are none.
    pub(crate) fn quantile(&self, per_mille: u64) -> u64 {
        let rank = (self.count * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (slot, count) in self.slots.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle_of(slot);
            }
        }
        0
    }
}

fn slot_of(value: u64) -> usize {
    let power = (value | 1).ilog2().saturating_sub(STEP_BITS);
    usize::try_from(u64::from(power) * STEPS + (value >> power)).expect("at most 2000 slots")
}

fn middle_of(slot: usize) -> u64 {
    let slot = slot as u64;
    // A slot of power p > 0 holds the mantissas from STEPS to 2 * STEPS - 1.
    let power = (slot / STEPS).saturating_sub(1);
    let low = (slot - power * STEPS) << power;
    low + (1u64 << power) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_within_three_per_cent_of_its_values() {
        for value in
            (0..200).chain([1_000, 12_345, 1 << 20, (1 << 20) + 1, 987_654_321, u64::MAX / 3])
        {
            let found = middle_of(slot_of(value));
            assert!(found.abs_diff(value) <= value / 32, "{value} is counted as {found}");
        }
    }

    #[test]
    fn quantiles_are_ranks() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile(500), 0);
        (1..=20).for_each(|value| histogram.add(value));
        assert_eq!(
            (histogram.quantile(500), histogram.quantile(990), histogram.quantile(1000)),
            (10, 20, 20)
        );
        let mut both = Histogram::new();
        both.merge(&histogram);
        both.add(31);
        assert_eq!(both.quantile(1000), 31);
    }
}
