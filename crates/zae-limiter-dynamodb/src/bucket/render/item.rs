//! The item of a bucket, or of a shard, that is made.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{BucketState, LimitSource, LimitState, Milli};

use crate::bucket::expiry::{expiry_s, keep_ms};
use crate::bucket::write::{LeafLimit, NewBucket, NewLeaf};
use crate::constants::{WCU_MILLI, WCU_PERIOD_MS};
use crate::records::attr::{self, of_limit};
use crate::records::item::config;
use crate::records::keys;
use crate::table::{Item, number, text};

/// What a new item has of the hidden limit: it can take a second's writes.
fn put_room(put: &mut impl FnMut(&str, AttributeValue), takes_milli: i64) {
    put(attr::ROOM, number(WCU_MILLI));
    put("b_wcu_cp", number(WCU_MILLI));
    put("b_wcu_ra", number(WCU_MILLI));
    put("b_wcu_rp", number(WCU_PERIOD_MS));
    put(attr::TAKES, number(takes_milli));
}

/// The keys of a shard, by which it is found.
fn put_keys(
    put: &mut impl FnMut(&str, AttributeValue),
    (namespace, entity, resource): (&str, &str, &str),
    shard: u32,
) {
    let key = keys::bucket_of(namespace, entity, resource, shard);
    put(attr::PK, text(key.pk));
    put(attr::SK, text(key.sk));
    put(attr::GSI2PK, text(keys::index::resource(namespace, resource)));
    put(attr::GSI2SK, text(keys::index::resource_bucket(entity, shard)));
    put(attr::GSI3PK, text(keys::index::entity(namespace, entity)));
    put(attr::GSI3SK, text(keys::index::entity_bucket(resource, shard)));
    put(attr::GSI4PK, text(namespace));
    put(attr::GSI4SK, text(keys::index::namespace_bucket(entity, resource, shard)));
}

/// The item of a new shard.
pub(super) fn leaf_item(leaf: &NewLeaf) -> Item {
    let mut item = Item::with_capacity(24 + 6 * leaf.limits.len());
    let mut put = |name: &str, value: AttributeValue| {
        item.insert(name.to_owned(), value);
    };
    put_keys(&mut put, (&leaf.namespace, &leaf.entity, &leaf.resource), leaf.standing.shard);
    for (name, value) in &leaf.copied {
        put(name, value.clone());
    }
    put(attr::REFILLED_AT, number(leaf.refilled_at.0));
    put(attr::SHARD_COUNT, number(leaf.standing.count));
    if let Some(read_at) = leaf.config_read_at {
        put(attr::CONFIG_READ_AT, number(read_at));
    }
    if let Some(era) = leaf.standing.era {
        put(attr::ERA, number(era));
    }
    if let Some(pinned) = &leaf.standing.pinned {
        put(attr::PINNED, text(pinned.as_str()));
    }
    if !leaf.retired.is_empty() {
        put(attr::RETIRED, AttributeValue::Ss(leaf.retired.clone()));
    }
    put_room(&mut put, 0);
    for LeafLimit { name, stored, balance, gap } in &leaf.limits {
        put(&of_limit(name, attr::BALANCE), number(balance.0));
        put(&of_limit(name, attr::CAPACITY), number(stored.capacity_milli));
        put(&of_limit(name, attr::REFILL), number(stored.refill_milli));
        put(&of_limit(name, attr::PERIOD), number(stored.period_ms));
        put(&of_limit(name, attr::USED), number(0));
        if *gap > Milli::ZERO {
            put(&of_limit(name, attr::GAP), number(gap.0));
        }
    }
    item
}

/// The item of a new bucket. A take that makes it counts as one; a charge does not.
pub(super) fn item(bucket: &NewBucket, takes_milli: i64) -> Item {
    let NewBucket { namespace, entity, resource, limits, .. } = bucket;
    let mut item = Item::with_capacity(24 + 5 * limits.limits.len());
    let mut put = |name: &str, value: AttributeValue| {
        item.insert(name.to_owned(), value);
    };
    put_keys(&mut put, (namespace, entity.as_str(), resource.as_str()), 0);
    put(attr::ENTITY_ID, text(entity.as_str()));
    put(attr::RESOURCE, text(resource.as_str()));
    let owner = bucket.owner.as_deref();
    let cascade = owner.is_some_and(|owner| owner.cascade && owner.parent.is_some());
    put(attr::CASCADE, AttributeValue::Bool(cascade));
    if let Some(parent) = owner.and_then(|owner| owner.parent.as_ref()) {
        put(attr::PARENT_ID, text(parent.as_str()));
    }
    if let Some(pgen) = owner.and_then(|owner| owner.pgen) {
        put(attr::PGEN, number(pgen));
    }
    if let Some(pinc) = owner.and_then(|owner| owner.pinc.as_ref()) {
        put(attr::PINC, text(pinc.as_str()));
    }
    if bucket.flag.blocks() {
        put(attr::DISABLED, config::flag_value(bucket.flag));
        // A delayed write of a flag that was meant for a bucket before this one must not enable
        // this one.
        put(attr::FLAG_COUNT, number(1));
    }
    put(attr::SHARD_COUNT, number(1));
    put(attr::CONFIG_READ_AT, number(config_read_at(bucket)));
    put_room(&mut put, takes_milli);
    let mut kept_ms = 0;
    match &bucket.carried {
        Some(state) => kept_ms = put_carried(&mut put, state),
        None => {
            put(attr::REFILLED_AT, number(bucket.now.0));
            put(attr::LAST_NONCE, text(bucket.nonce.as_str()));
        }
    }
    for limit in limits.limits.iter() {
        let (name, params) = (limit.name(), limit.params());
        let amount = bucket
            .amounts
            .iter()
            .find(|(of, _)| of == name)
            .map_or(Milli::ZERO, |(_, amount)| *amount);
        let after = params.full().saturating_sub(amount);
        put(&of_limit(name, attr::BALANCE), number(after.0));
        put(&of_limit(name, attr::CAPACITY), number(params.capacity_milli));
        put(&of_limit(name, attr::REFILL), number(params.refill_milli));
        put(&of_limit(name, attr::PERIOD), number(params.period_ms));
        put(&of_limit(name, attr::USED), number(amount.0));
        kept_ms = kept_ms.max(keep_ms(params, after, Milli::ZERO));
    }
    if let Some(own_ttl_ms) = limits.ttl_ms {
        put(attr::TTL, number(expiry_s(bucket.now, own_ttl_ms, kept_ms)));
    }
    item
}

/// The limits of a bucket that another store had, retired ones too. `tc` begins with 0, as that of
/// a new shard: a reader of the stream counts what it grows by as use, and what was used elsewhere
/// is in the history already. Returns how long the limits need to be kept.
fn put_carried(put: &mut impl FnMut(&str, AttributeValue), state: &BucketState) -> i64 {
    put(attr::REFILLED_AT, number(state.refilled_at.0));
    let mut kept_ms = 0;
    for LimitState { name, params, balance, remainder, .. } in state.all_limits() {
        let gap = state.gap(name);
        put(&of_limit(name, attr::BALANCE), number(balance.0));
        put(&of_limit(name, attr::CAPACITY), number(params.capacity_milli));
        put(&of_limit(name, attr::REFILL), number(params.refill_milli));
        put(&of_limit(name, attr::PERIOD), number(params.period_ms));
        put(&of_limit(name, attr::USED), number(0));
        if *remainder > 0 {
            put(&of_limit(name, attr::REMAINDER), number(*remainder));
            put(attr::REMAINDERS_AT, number(state.refilled_at.0));
        }
        if gap > Milli::ZERO {
            put(&of_limit(name, attr::GAP), number(gap.0));
        }
        kept_ms = kept_ms.max(keep_ms(*params, *balance, gap));
    }
    let retired = &state.all_limits()[state.active()..];
    if !retired.is_empty() {
        let names = retired.iter().map(|limit| limit.name.to_string()).collect();
        put(attr::RETIRED, AttributeValue::Ss(names));
    }
    kept_ms
}

fn config_read_at(bucket: &NewBucket) -> i64 {
    if bucket.limits.source == LimitSource::Call {
        bucket.now.0
    } else {
        i64::try_from(bucket.limits.stamp.0 / 1000).unwrap_or(i64::MAX)
    }
}
