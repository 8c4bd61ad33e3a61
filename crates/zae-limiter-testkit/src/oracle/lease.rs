//! A lease as it should be: what it holds, and which changes its end intends.

use std::collections::BTreeMap;

use zae_limiter::OnDrop;
use zae_limiter_core::EntityId;

use crate::oracle::books::{Change, OpId, PlannedMember};

pub(crate) type LeaseId = u64;

/// What a lease has written under one plan.
#[derive(Clone, Debug)]
struct Receipt {
    members: Vec<(EntityId, Vec<usize>)>,
    written: Vec<i128>,
    /// Charges that were sent and not confirmed: nothing may be given back from them.
    doubtful: Vec<i128>,
}

impl Receipt {
    fn of(members: &[PlannedMember], declared: &[String], written: Vec<i128>) -> Receipt {
        let shares = |member: &PlannedMember| {
            let has = |index: &usize| member.limits.contains(&declared[*index]);
            (member.entity.clone(), (0..declared.len()).filter(has).collect())
        };
        Receipt {
            members: members.iter().map(shares).collect(),
            doubtful: vec![0; written.len()],
            written,
        }
    }

    fn changes(&self, declared: &[String], amounts: &[i128]) -> Vec<Change> {
        let mut changes = Vec::new();
        for (entity, shares) in &self.members {
            for index in shares.iter().filter(|index| amounts[**index] != 0) {
                changes.push(Change {
                    entity: entity.clone(),
                    limit: declared[*index].clone(),
                    milli: amounts[*index],
                });
            }
        }
        changes
    }

    fn has(&self, index: usize) -> bool {
        self.members.iter().any(|(_, shares)| shares.contains(&index))
    }
}

/// What one settlement intends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Intent {
    pub(crate) changes: Vec<Change>,
    /// Tokens are to be given back that were charged and are not known to be paid. They must wait
    /// for their charge, or be given up and counted; which of both, and when, is the library's
    /// choice.
    pub(crate) in_doubt: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct LeaseModel {
    pub(crate) id: LeaseId,
    pub(crate) declared: Vec<String>,
    pub(crate) used: Vec<i128>,
    pub(crate) on_drop: OnDrop,
    pub(crate) degraded: bool,
    receipts: Vec<Receipt>,
    /// Charges that a flush has sent: the receipt, and how much of each limit.
    flushes: BTreeMap<OpId, (usize, Vec<i128>)>,
}

impl LeaseModel {
    pub(crate) fn new(
        id: LeaseId,
        amounts: &[(String, u64)],
        on_drop: OnDrop,
        members: Option<&[PlannedMember]>,
    ) -> LeaseModel {
        let declared: Vec<String> = amounts.iter().map(|(name, _)| name.clone()).collect();
        let used: Vec<i128> =
            amounts.iter().map(|(_, tokens)| i128::from(*tokens) * 1000).collect();
        let receipts = members
            .map(|members| Receipt::of(members, &declared, used.clone()))
            .into_iter()
            .collect();
        LeaseModel {
            id,
            declared,
            used,
            on_drop,
            degraded: members.is_none(),
            receipts,
            flushes: BTreeMap::new(),
        }
    }

    /// More was granted.
    pub(crate) fn absorb(&mut self, amounts: &[(String, u64)], members: &[PlannedMember]) {
        let mut more = vec![0; self.declared.len()];
        for (name, tokens) in amounts {
            let index = self.declared.iter().position(|declared| declared == name);
            more[index.unwrap_or(0)] += i128::from(*tokens) * 1000;
        }
        add(&mut self.used, &more);
        let receipt = Receipt::of(members, &self.declared, more);
        match self.receipts.last_mut() {
            // Only what was taken from the very same limits may be settled together.
            Some(last) if last.members == receipt.members => {
                add(&mut last.written, &receipt.written)
            }
            _ => self.receipts.push(receipt),
        }
    }

    pub(crate) fn record(&mut self, index: usize, tokens: u64) {
        self.used[index] = i128::from(tokens) * 1000;
    }

    pub(crate) fn adjust(&mut self, index: usize, tokens: i64) {
        self.used[index] = (self.used[index] + i128::from(tokens) * 1000).max(0);
    }

    /// A flush begins.
    pub(crate) fn flush(&mut self, op: OpId) -> Intent {
        let before: Vec<Vec<i128>> =
            self.receipts.iter().map(|receipt| receipt.doubtful.clone()).collect();
        let intent = self.settle_use();
        for (index, receipt) in self.receipts.iter().enumerate() {
            let charged: Vec<i128> = receipt
                .doubtful
                .iter()
                .zip(&before[index])
                .map(|(now, before)| now - before)
                .collect();
            if charged.iter().any(|milli| *milli != 0) {
                // Several receipts may be charged at once, for different limits; each is confirmed
                // by itself.
                self.flushes.insert(op * 16 + index as OpId, (index, charged));
            }
        }
        intent
    }

    /// A flush came to its end; `fine` says of a receipt whether everything sent for it was
    /// written.
    pub(crate) fn flushed(&mut self, op: OpId, fine: bool) {
        for index in 0..self.receipts.len() {
            if let Some((receipt, charged)) = self.flushes.remove(&(op * 16 + index as OpId))
                && fine
            {
                self.receipts[receipt]
                    .doubtful
                    .iter_mut()
                    .zip(charged)
                    .for_each(|(doubtful, milli)| *doubtful -= milli);
            }
        }
    }

    /// The difference between use and what is written. A charge goes to the last receipt that has
    /// the limit; a credit goes back to where tokens are known to have come from.
    pub(crate) fn settle_use(&mut self) -> Intent {
        let mut changes: Vec<Vec<i128>> =
            self.receipts.iter().map(|receipt| vec![0; receipt.written.len()]).collect();
        let mut in_doubt = false;
        for index in 0..self.used.len() {
            let mut difference = self.used[index]
                - self.receipts.iter().map(|receipt| receipt.written[index]).sum::<i128>();
            if difference > 0 {
                if let Some(place) = self.receipts.iter().rposition(|receipt| receipt.has(index)) {
                    changes[place][index] = difference;
                    self.receipts[place].doubtful[index] += difference;
                    self.receipts[place].written[index] += difference;
                }
                continue;
            }
            for (receipt, change) in self.receipts.iter_mut().zip(&mut changes).rev() {
                let given = (-difference).min(receipt.written[index] - receipt.doubtful[index]);
                change[index] = -given;
                receipt.written[index] -= given;
                difference += given;
            }
            in_doubt |= difference < 0;
        }
        let changes = self
            .receipts
            .iter()
            .zip(&changes)
            .flat_map(|(receipt, change)| receipt.changes(&self.declared, change))
            .collect();
        Intent { changes, in_doubt }
    }

    pub(crate) fn roll_back(&mut self) -> Intent {
        let mut intent = Intent::default();
        for receipt in std::mem::take(&mut self.receipts) {
            let certain: Vec<i128> = receipt
                .written
                .iter()
                .zip(&receipt.doubtful)
                .map(|(written, doubtful)| doubtful - written)
                .collect();
            intent.changes.extend(receipt.changes(&self.declared, &certain));
            intent.in_doubt |= receipt.doubtful.iter().any(|doubtful| *doubtful > 0);
        }
        intent
    }

    /// What dropping it unfinished intends.
    pub(crate) fn dropped(&mut self) -> Intent {
        match self.on_drop {
            OnDrop::Rollback => self.roll_back(),
            OnDrop::Commit => self.settle_use(),
            OnDrop::Keep => Intent::default(),
        }
    }
}

fn add(sums: &mut [i128], amounts: &[i128]) {
    sums.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount);
}
