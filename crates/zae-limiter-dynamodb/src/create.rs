//! The item of a new bucket.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{EntityId, LimitSource, ResourceName};
use zae_limiter_store::LimitsInForce;

use crate::constants::{WCU_MILLI, WCU_PERIOD_MS};
use crate::entity::Owner;
use crate::image::{attr, limit_attr};
use crate::keys;
use crate::refill::{Amount, expiry_s, keep_ms};
use crate::table::{Condition, Item, Put, number, text};
use crate::write::{BucketWrite, Writer};

/// A bucket to make.
pub(crate) struct Birth<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) entity: &'a EntityId,
    pub(crate) resource: &'a ResourceName,
    /// `None` when the entity has no record.
    pub(crate) owner: Option<&'a Owner>,
    pub(crate) limits: &'a LimitsInForce,
    /// Taken or charged on the way.
    pub(crate) amounts: &'a [Amount<'a>],
    /// Switched off from its first moment.
    pub(crate) disabled: bool,
    pub(crate) nonce: &'a str,
    pub(crate) now: i64,
}

impl Birth<'_> {
    /// The write that makes it, if it is not there.
    pub(crate) fn build(&self, writer: Writer) -> BucketWrite {
        let put = Put { item: self.item(), conditions: vec![Condition::Absent(attr::PK.into())] };
        BucketWrite::put(writer, put)
    }

    fn item(&self) -> Item {
        let Birth { namespace, entity, resource, .. } = *self;
        let key = keys::bucket(namespace, entity, resource, 0);
        let mut item = Item::with_capacity(24 + 5 * self.limits.limits.len());
        let mut put = |name: &str, value: AttributeValue| {
            item.insert(name.to_owned(), value);
        };
        put("PK", text(key.pk));
        put("SK", text(key.sk));
        put("GSI2PK", text(keys::index::resource(namespace, resource)));
        put("GSI2SK", text(keys::index::resource_bucket(entity, 0)));
        put("GSI3PK", text(keys::index::entity(namespace, entity)));
        put("GSI3SK", text(keys::index::entity_bucket(resource, 0)));
        put("GSI4PK", text(namespace));
        put("GSI4SK", text(keys::index::namespace_bucket(entity, resource, 0)));
        put("entity_id", text(entity.as_str()));
        put("resource", text(resource.as_str()));
        put(
            "cascade",
            AttributeValue::Bool(
                self.owner.is_some_and(|owner| owner.cascade && owner.parent.is_some()),
            ),
        );
        if let Some(owner) = self.owner {
            if let Some(parent) = &owner.parent {
                put("parent_id", text(parent.as_str()));
            }
            if let Some(pgen) = owner.pgen {
                put("pgen", number(pgen));
            }
            if let Some(pinc) = &owner.pinc {
                put("pinc", text(pinc.as_str()));
            }
        }
        if self.disabled {
            put(attr::DISABLED, AttributeValue::Bool(true));
            // A delayed write of a flag that was meant for a bucket before this one must not switch
            // this one on.
            put(attr::FV, number(1));
        }
        put(attr::RF, number(self.now));
        put(attr::SHARD_COUNT, number(1));
        put(attr::LW, text(self.nonce));
        put(attr::CA, number(self.read_at()));
        put("b_wcu_tk", number(WCU_MILLI));
        put("b_wcu_cp", number(WCU_MILLI));
        put("b_wcu_ra", number(WCU_MILLI));
        put("b_wcu_rp", number(WCU_PERIOD_MS));
        put("b_wcu_tc", number(0));
        let mut kept_ms = 0;
        for limit in self.limits.limits.iter() {
            let (name, params) = (limit.name(), limit.params());
            let amount = self
                .amounts
                .iter()
                .find(|amount| amount.limit.name() == name)
                .map_or(0, |amount| amount.milli);
            let after = params.capacity_milli.saturating_sub(amount);
            put(&limit_attr(name, "tk"), number(after));
            put(&limit_attr(name, "cp"), number(params.capacity_milli));
            put(&limit_attr(name, "ra"), number(params.refill_milli));
            put(&limit_attr(name, "rp"), number(params.period_ms));
            put(&limit_attr(name, "tc"), number(amount));
            kept_ms = kept_ms.max(keep_ms(params, after, 0));
        }
        if let Some(own_ttl_ms) = self.limits.ttl_ms {
            put(attr::TTL, number(expiry_s(self.now, own_ttl_ms, kept_ms)));
        }
        item
    }

    fn read_at(&self) -> i64 {
        if self.limits.source == LimitSource::Call {
            self.now
        } else {
            i64::try_from(self.limits.stamp.0 / 1000).unwrap_or(i64::MAX)
        }
    }
}
