//! The verdict: is the new build worse than the old one?
//!
//! CPU time of one build differs from run to run by more than what we look for. So each round
//! measures the old build twice: the second old measurement over the first is the noise of this
//! machine in these very rounds, and a new build is worse only beyond that noise.

/// How far the median has to exceed the upper quartile of the noise.
pub(super) const MARGIN: f64 = 1.03;

/// Figures per call are compared to this many decimals: set-up within a lap is a few in ten
/// thousand.
const EXACT_STEPS: f64 = 100.0;

/// One figure of one row, in every round.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    /// The old build.
    pub(super) old: Vec<f64>,
    /// The old build once more.
    pub(super) again: Vec<f64>,
    /// The new build.
    pub(super) new: Vec<f64>,
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Ratios inside a round, new over old.
    Ratio {
        /// Their median.
        median: f64,
        /// The least and the greatest.
        range: [f64; 2],
        /// The median of the old build against itself.
        itself: f64,
        /// The most that the median may be.
        bound: f64,
    },
    /// Figures that do not vary.
    Exact {
        /// Of the old build.
        old: f64,
        /// Of the new build.
        new: f64,
    },
}

impl Verdict {
    pub(super) fn is_worse(self) -> bool {
        match self {
            Verdict::Ratio { median, bound, .. } => median > bound,
            Verdict::Exact { old, new } => new > old,
        }
    }
}

/// Judges what varies from round to round; `None` without a round in which all three were measured.
pub(super) fn ratio(series: &Series) -> Option<Verdict> {
    let over_old = |values: &[f64]| -> Vec<f64> {
        let pairs = values.iter().zip(&series.old);
        pairs.filter(|(_, old)| **old > 0.0).map(|(value, old)| value / old).collect()
    };
    let (ratios, noise) = (over_old(&series.new), over_old(&series.again));
    let range = [quantile(&ratios, 0.0)?, quantile(&ratios, 1.0)?];
    let bound = quantile(&noise, 0.75)? * MARGIN;
    Some(Verdict::Ratio { median: median(&ratios)?, range, itself: median(&noise)?, bound })
}

/// Judges a figure that is the same in every round; if the old build's own varies, the noise
/// decides as for CPU.
pub(super) fn exact(series: &Series) -> Option<Verdict> {
    let rounded = |value: f64| (value * EXACT_STEPS).round() / EXACT_STEPS;
    let old = rounded(*series.old.first()?);
    let all_alike = series.old.iter().chain(&series.again).all(|value| rounded(*value) == old);
    if all_alike || old == 0.0 {
        return Some(Verdict::Exact { old, new: rounded(median(&series.new)?) });
    }
    ratio(series)
}

pub(super) fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Between two values, in proportion.
fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let place = part * values.len().checked_sub(1)? as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and a length"
    )]
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    Some(values[below] + (values[above] - values[below]) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds with disturbances that hit all three builds of a round, and some noise of their own.
    fn rounds(slower: f64) -> Series {
        let disturbed =
            [1.0, 1.4, 0.9, 2.0, 1.1, 1.0, 1.3, 1.0, 1.7, 1.2, 1.0, 0.95, 1.05, 1.5, 1.0];
        let noise = [
            0.0, 0.02, -0.01, 0.015, -0.02, 0.01, 0.0, -0.015, 0.005, 0.02, -0.005, 0.01, 0.0,
            -0.01, 0.03,
        ];
        let mut series = Series::default();
        for (place, factor) in disturbed.iter().enumerate() {
            let by = |shift: usize| 1.0 + noise[(place + shift) % noise.len()];
            series.old.push(10.0 * factor * by(0));
            series.again.push(10.0 * factor * by(4));
            series.new.push(10.0 * factor * by(9) * slower);
        }
        series
    }

    fn is_worse(series: &Series) -> bool {
        ratio(series).expect("a verdict").is_worse()
    }

    #[test]
    fn quantiles_lie_between_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(quantile(&[5.0, 1.0, 2.0, 3.0, 4.0], 0.75), Some(4.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.75), Some(3.25));
    }

    #[test]
    fn a_build_is_not_worse_than_itself() {
        assert!(!is_worse(&rounds(1.0)));
        assert!(!is_worse(&rounds(0.8)), "nor is a faster one");
    }

    #[test]
    fn a_planted_slowdown_is_found_through_disturbances_twenty_times_as_large() {
        assert!(is_worse(&rounds(1.06)));
        assert!(is_worse(&rounds(1.5)));
    }

    #[test]
    fn a_slowdown_within_the_noise_and_the_margin_is_none() {
        assert!(!is_worse(&rounds(1.01)));
    }

    #[test]
    fn the_margin_starts_at_the_upper_quartile_of_the_noise() {
        let series =
            |new| Series { old: vec![1.0; 4], again: vec![1.0, 1.0, 1.1, 1.1], new: vec![new; 4] };
        let Some(Verdict::Ratio { bound, itself, .. }) = ratio(&series(1.0)) else {
            panic!("a ratio")
        };
        assert!((bound - 1.1 * 1.03).abs() < 1e-9 && (itself - 1.05).abs() < 1e-9);
        assert!(!is_worse(&series(1.13)) && is_worse(&series(1.14)));
    }

    #[test]
    fn one_bad_round_decides_nothing() {
        let mut series = rounds(1.0);
        series.new[3] *= 10.0;
        assert!(!is_worse(&series));
    }

    #[test]
    fn an_exact_figure_is_compared_exactly() {
        let series =
            |new: f64| Series { old: vec![13.0001; 3], again: vec![13.0002; 3], new: vec![new; 3] };
        assert_eq!(exact(&series(13.0004)), Some(Verdict::Exact { old: 13.0, new: 13.0 }));
        assert!(!exact(&series(12.0)).expect("a verdict").is_worse());
        assert!(exact(&series(13.02)).expect("a verdict").is_worse(), "one call in fifty");
    }

    #[test]
    fn a_figure_that_was_nothing_stays_nothing() {
        let series = Series { old: vec![0.0; 3], again: vec![0.0, 0.01, 0.0], new: vec![1.0; 3] };
        assert!(exact(&series).expect("a verdict").is_worse());
    }

    #[test]
    fn a_figure_of_the_old_build_that_varies_is_judged_by_its_noise() {
        let series = |new: f64| Series {
            old: vec![8.0, 9.0, 8.5],
            again: vec![8.4, 8.8, 8.6],
            new: vec![new; 3],
        };
        assert!(!exact(&series(8.6)).expect("a verdict").is_worse());
        assert!(exact(&series(12.0)).expect("a verdict").is_worse());
    }

    #[test]
    fn nothing_measured_is_no_verdict() {
        assert_eq!(ratio(&Series::default()), None);
        assert_eq!(exact(&Series::default()), None);
        assert_eq!(ratio(&Series { old: vec![0.0], again: vec![0.0], new: vec![0.0] }), None);
    }
}
