//! What the shards of a bucket can serve, and when (rule S8). Pure.
//!
//! A take passes when one shard has all of it, or when all shards have it together. So the wait of
//! a refusal is reckoned shard by shard: a full shard gains nothing more, and what one shard owes
//! does not hold up another. Example: 1 000 an hour over two shards; shard 0 has its 500, shard 1
//! has nothing. A take of 900 passes after 48 minutes, not after 24.

use smallvec::SmallVec;
use zae_limiter_core::{LimitName, LimitParams, Milli, TimeMs};

use crate::bucket::image::Image;

/// Limits that are asked for, with their parameters and amounts.
pub(crate) type Wanted<'a> = SmallVec<[(&'a LimitName, LimitParams, Milli); 3]>;

/// How long a limit stands in the way, in ms from now.
pub(crate) type Waits = SmallVec<[(LimitName, i64); 2]>;

/// What a shard has of a limit; a limit that it lacks is full there.
pub(crate) fn balance(image: &Image, name: &LimitName, params: LimitParams, at: TimeMs) -> Milli {
    image.balance_at(name, at).unwrap_or_else(|| image.effective(name, params).full())
}

/// Whether a limit is asked of a shard: those that are pinned are all on shard 0.
pub(crate) fn is_asked(image: &Image, name: &LimitName) -> bool {
    image.standing.shard == 0 || !image.standing.is_pinned(name)
}

/// The place of a shard that has all that is wanted, pinned limits being those of shard 0. Of
/// several shards the one that keeps most: others who have read the same images take there too.
pub(crate) fn alone(images: &[&Image], wanted: &Wanted<'_>, at: TimeMs) -> Option<usize> {
    let root = images.iter().find(|image| image.standing.shard == 0)?;
    let kept = |image: &Image| {
        let left = wanted.iter().map(|(name, params, amount)| {
            let asked = if is_asked(image, name) { image } else { root };
            balance(asked, name, *params, at).saturating_sub(*amount)
        });
        left.min().unwrap_or_default()
    };
    let kept = images.iter().map(|image| kept(image)).enumerate();
    let most = kept.max_by_key(|(place, kept)| (*kept, std::cmp::Reverse(*place)))?;
    (most.1 >= Milli::ZERO).then_some(most.0)
}

/// What all shards have of a limit together.
fn total(images: &[&Image], (name, params): (&LimitName, LimitParams), at: TimeMs) -> Milli {
    images
        .iter()
        .filter(|image| is_asked(image, name))
        .fold(Milli::ZERO, |sum, image| sum.saturating_add(balance(image, name, params, at)))
}

/// When each limit that is short no longer stands in the way, if nobody else takes. The longest of
/// these is when the take passes. Limits that will never have enough are left out.
pub(crate) fn waits(images: &[&Image], wanted: &Wanted<'_>, now: TimeMs) -> Waits {
    let has = |limit: &(&LimitName, LimitParams, Milli), at| {
        total(images, (limit.0, limit.1), at) >= limit.2
    };
    // A take that one shard can serve waits for that shard at most.
    let all_ms = first_ms(|ms| {
        let at = now.plus_ms(ms);
        alone(images, wanted, at).is_some() || wanted.iter().all(|limit| has(limit, at))
    });
    let short = wanted.iter().filter(|limit| !has(limit, now));
    short
        .filter_map(|limit| {
            let own_ms = first_ms(|ms| has(limit, now.plus_ms(ms)));
            let ms = match (own_ms, all_ms) {
                (Some(own), Some(all)) => own.min(all),
                (own, all) => own.or(all)?,
            };
            Some((limit.0.clone(), ms))
        })
        .collect()
}

/// The first millisecond at which `is_so` holds, within ten years. Once it holds it must go on to.
fn first_ms(is_so: impl Fn(i64) -> bool) -> Option<i64> {
    const TEN_YEARS_MS: i64 = 10 * 366 * 86_400_000;
    let mut so = 1;
    while !is_so(so) {
        if so > TEN_YEARS_MS {
            return None;
        }
        so *= 4;
    }
    let mut not = so / 4;
    while so - not > 1 {
        let middle = not + (so - not) / 2;
        if is_so(middle) {
            so = middle;
        } else {
            not = middle;
        }
    }
    Some(so)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Item, number, text};

    const HOUR_MS: i64 = 3_600_000;
    const NOW: TimeMs = TimeMs(1_000_000);

    /// A shard of a bucket of 1 000 tokens an hour.
    fn shard(shard: u32, count: i64, tokens: i64) -> Image {
        let mut item: Item = [
            ("rf", NOW.0),
            ("shard_count", count),
            ("b_rpm_tk", tokens * 1_000),
            ("b_rpm_cp", 1_000_000),
            ("b_rpm_ra", 1_000_000),
            ("b_rpm_rp", HOUR_MS),
        ]
        .map(|(name, value)| (name.to_owned(), number(value)))
        .into();
        item.insert("PK".to_owned(), text(format!("ns/BUCKET#key#gpt-4#{shard}")));
        Image::parse(&item).expect("a shard")
    }

    fn wait_s(shards: &[Image], tokens: i64) -> Option<i64> {
        let images: Vec<&Image> = shards.iter().collect();
        let name: LimitName = "rpm".parse().expect("a name");
        let params = images[0].limit(&name).expect("a limit").stored;
        let wanted: Wanted<'_> = [(&name, params, Milli(tokens * 1_000))].into_iter().collect();
        waits(&images, &wanted, NOW).first().map(|(_, ms)| ms.div_euclid(1_000))
    }

    #[test]
    fn a_full_shard_gains_nothing() {
        assert_eq!(wait_s(&[shard(0, 2, 500), shard(1, 2, 0)], 900), Some(48 * 60));
        assert_eq!(wait_s(&[shard(0, 2, 250), shard(1, 2, 250)], 900), Some(24 * 60));
    }

    #[test]
    fn a_take_waits_for_the_shard_that_serves_it_first() {
        let shards = [shard(0, 2, 5), shard(1, 2, -4_500)];
        assert_eq!(wait_s(&shards, 10), Some(36), "not for what the other owes");
        assert_eq!(wait_s(&shards, 501), Some(32_407), "both are needed");
    }

    #[test]
    fn what_is_there_needs_no_wait_and_what_can_never_be_there_has_none() {
        let shards = [shard(0, 2, 500), shard(1, 2, 400)];
        assert_eq!((wait_s(&shards, 900), wait_s(&shards, 1_001)), (None, None));
    }
}
