//! The floor: the SDK alone, sending what our client sends.

use anyhow::Result;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure};
use futures_util::future::join;
use zae_limiter_dynamodb::sdk::expression::{self, Rendered};

use super::warm::WarmWrites;
use super::watch::{Callers, Place, Sends, row};
use super::{STACK, partition_key, reach};
use crate::cell::Op;
use crate::keys::{self, pick};
use crate::rows::Entry;

pub(super) const ONE: Entry = Entry {
    name: "bare",
    what: "update_item().send(), prebuilt maps cloned: the floor",
    make: |context| {
        row(context, (Callers::Alone, Sends::One), async |place| Bare::new(place).await.map(One))
    },
};

pub(super) const WRITTEN: Entry = Entry {
    name: "bare-written",
    what: "the same, names and values given one by one",
    make: |context| {
        row(context, (Callers::Alone, Sends::One), async |place| {
            Bare::new(place).await.map(Written)
        })
    },
};

pub(super) const TWO: Entry = Entry {
    name: "bare-two",
    what: "two sends in turn: a take and a charge",
    make: |context| {
        row(context, (Callers::Alone, Sends::Two), async |place| Bare::new(place).await.map(Two))
    },
};

pub(super) const PAIR: Entry = Entry {
    name: "bare-pair",
    what: "two sends at once",
    make: |context| {
        row(context, (Callers::Alone, Sends::Two), async |place| Bare::new(place).await.map(Pair))
    },
};

pub(super) const CROWD: Entry = Entry {
    name: "bare-64",
    what: "send(), 64 tasks, current-thread",
    make: |context| {
        row(context, (Callers::Crowd, Sends::One), async |place| Bare::new(place).await.map(One))
    },
};

pub(super) const THREADS: Entry = Entry {
    name: "bare-mt",
    what: "send(), 1 task, multi-threaded",
    make: |context| {
        row(context, (Callers::AloneOnThreads, Sends::One), async |place| {
            Bare::new(place).await.map(One)
        })
    },
};

pub(super) const THREADS_CROWD: Entry = Entry {
    name: "bare-mt-64",
    what: "send(), 64 tasks, multi-threaded",
    make: |context| {
        row(context, (Callers::CrowdOnThreads, Sends::One), async |place| {
            Bare::new(place).await.map(One)
        })
    },
};

/// The SDK alone, with the connections, timeouts and retries of our client, and without our look at
/// the clock of answers.
pub(super) struct Bare {
    client: Client,
    partition_keys: Vec<String>,
    debit: Rendered,
    charge: Rendered,
}

impl Bare {
    pub(super) async fn new(place: Place<'_>) -> Result<Bare> {
        let builder = reach(place.url).trust_local_clock();
        let entities = keys::entities(place.keys);
        let WarmWrites { debit, charge } = WarmWrites::of(&builder, entities[0].as_str()).await?;
        Ok(Bare {
            client: builder.table().await?.client().clone(),
            partition_keys: entities.iter().map(partition_key).collect(),
            debit: expression::render(&debit.actions, &debit.conditions),
            charge: expression::render(&charge.actions, &charge.conditions),
        })
    }

    pub(super) async fn debit(&self, random: u64) {
        self.send(random, &self.debit).await;
    }

    async fn send(&self, random: u64, rendered: &Rendered) {
        let Rendered { update, condition, names, values } = rendered.clone();
        let request = self.client.update_item().table_name(STACK);
        let answer = request
            .key("PK", AttributeValue::S(pick(&self.partition_keys, random).clone()))
            .key("SK", AttributeValue::S("#STATE".to_owned()))
            .set_update_expression(update)
            .set_condition_expression(condition)
            .set_expression_attribute_names(names)
            .set_expression_attribute_values(values)
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        assert!(answer.expect("an answer").attributes.is_some_and(|item| item.contains_key("rf")));
    }
}

/// As a program does that writes its request in one place.
struct Written(Bare);

impl Op for Written {
    async fn call(&self, random: u64) {
        let Bare { client, partition_keys, debit, .. } = &self.0;
        let mut request = client
            .update_item()
            .table_name(STACK)
            .key("PK", AttributeValue::S(pick(partition_keys, random).clone()))
            .key("SK", AttributeValue::S("#STATE".to_owned()))
            .update_expression(debit.update.as_deref().unwrap_or_default())
            .condition_expression(debit.condition.as_deref().unwrap_or_default())
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        for (alias, name) in debit.names.iter().flatten() {
            request = request.expression_attribute_names(alias, name);
        }
        for (alias, value) in debit.values.iter().flatten() {
            request = request.expression_attribute_values(alias, value.clone());
        }
        assert!(
            request
                .send()
                .await
                .expect("an answer")
                .attributes
                .is_some_and(|item| item.contains_key("rf"))
        );
    }
}

struct One(Bare);

impl Op for One {
    async fn call(&self, random: u64) {
        self.0.debit(random).await;
    }
}

/// What a lease with an adjustment sends.
struct Two(Bare);

impl Op for Two {
    async fn call(&self, random: u64) {
        self.0.send(random, &self.0.debit).await;
        self.0.send(random, &self.0.charge).await;
    }
}

/// What a child and its parent send.
struct Pair(Bare);

impl Op for Pair {
    async fn call(&self, random: u64) {
        join(self.0.debit(random), self.0.debit(!random)).await;
    }
}
