//! Takes: what the store must answer, and what it must have written.

use std::collections::BTreeMap;

use zae_limiter_core::{EntityId, LimitReport, LimitSource, Reports, Wait};
use zae_limiter_store::{ConsumeOutcome, ConsumeRequest, Grant, MemberTake};

use super::bucket::{Bucket, Past};
use super::{Broken, BucketKey, Oracle, Tenant};

/// What the oracle would do with one member.
struct Prepared {
    key: BucketKey,
    bucket: Bucket,
    past: Past,
    /// Written even if the chain is refused.
    synced: bool,
    /// A member without limits: it has no bucket, only a flag.
    is_unlimited: bool,
}

/// What stops a chain before it is decided.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    Stale(usize),
    Disabled(usize),
}

impl Oracle {
    /// A take that reached the store.
    pub(crate) fn consume(
        &mut self,
        namespace: &str,
        request: &ConsumeRequest<'_>,
        said: &ConsumeOutcome,
    ) -> Result<(), Broken> {
        let tenant = self.tenants.entry(namespace.to_owned()).or_default();
        let prepared = match prepare(tenant, request) {
            Err(stop) => {
                match stop {
                    Stop::Stale(_) => self.coverage.stale += 1,
                    Stop::Disabled(member) => {
                        self.coverage.disabled += 1;
                        self.coverage.disabled_unlimited +=
                            u64::from(request.members[member].is_unlimited());
                    }
                }
                return answers_as_stopped(&stop, said);
            }
            Ok(prepared) => prepared,
        };
        let granted = check_reports(&prepared, request, said)?;
        self.coverage.synced += prepared.iter().filter(|member| member.synced).count() as u64;
        if !granted {
            self.coverage.refused += 1;
            for member in prepared.into_iter().filter(|member| member.synced) {
                self.coverage.synced_on_refusal += 1;
                tenant.past.insert(member.key.clone(), member.past);
                tenant
                    .told(&member.key, request.now, self.elapsed_ms, &mut self.coverage)
                    .become_limits(&member.bucket.accounts);
                tenant.buckets.insert(member.key, member.bucket);
            }
            return Ok(());
        }
        self.coverage.granted += 1;
        self.coverage.granted_chains +=
            u64::from(prepared.iter().filter(|member| !member.is_unlimited).count() > 1);
        self.coverage.granted_unlimited +=
            u64::from(prepared.iter().any(|member| member.is_unlimited));
        for entity in chain_of_the_caller(tenant, request) {
            let resource = request.members[0].resource;
            if tenant.config.blocked_by(&entity, resource).is_some() {
                return Err(format!(
                    "{entity}/{resource} is disabled, and a take of {} was granted",
                    request.members[0].entity
                ));
            }
        }
        for (mut member, asked) in prepared.into_iter().zip(request.members) {
            if member.is_unlimited {
                continue;
            }
            let takes: Vec<(usize, i128)> = asked
                .takes
                .iter()
                .map(|take| (usize::from(take.limit), i128::from(take.amount.0)))
                .collect();
            self.coverage.hidden_gaps +=
                member.bucket.accounts.iter().filter(|account| account.gap > 0).count() as u64;
            member
                .bucket
                .take(&takes, request.now.0, &mut member.past)
                .map_err(|excess| format!("{}/{}: {excess}", asked.entity, asked.resource))?;
            let hour = member.bucket.hour;
            tenant.past.insert(member.key.clone(), member.past);
            tenant
                .told(&member.key, request.now, self.elapsed_ms, &mut self.coverage)
                .become_limits(&member.bucket.accounts);
            tenant.buckets.insert(member.key.clone(), member.bucket);
            for take in asked.takes {
                let name = asked.limits.limits[usize::from(take.limit)].name().to_string();
                let real = tenant.real.entry(member.key.clone()).or_default();
                real.admit(&name, i128::from(take.amount.0), &mut self.coverage.real_time)
                    .map_err(|excess| format!("{}/{}: {excess}", asked.entity, asked.resource))?;
                tenant.count(&member.key, &name, i128::from(take.amount.0));
            }
            tenant.usage.entry((member.key.0, member.key.1, hour)).or_default().events += 1;
        }
        Ok(())
    }

    /// A look that must answer like a take and change nothing.
    pub(crate) fn peek(
        &mut self,
        namespace: &str,
        request: &ConsumeRequest<'_>,
        said: &ConsumeOutcome,
    ) -> Result<(), Broken> {
        match prepare(self.tenant(namespace), request) {
            Err(stop) => answers_as_stopped(&stop, said),
            Ok(prepared) => {
                // A look reports the balances there are, also when it passes.
                let seen = match said {
                    ConsumeOutcome::Granted(grant) => {
                        ConsumeOutcome::Granted(after_takes(&grant.reports).into())
                    }
                    other => other.clone(),
                };
                check_reports(&prepared, request, &seen).map(|_| ())
            }
        }
    }
}

fn after_takes(reports: &Reports) -> Reports {
    reports
        .iter()
        .map(|report| LimitReport {
            balance: report.balance.saturating_sub(report.requested),
            ..*report
        })
        .collect()
}

/// The chain as the caller has read it, whichever member the request was sent for.
fn chain_of_the_caller(tenant: &Tenant, request: &ConsumeRequest<'_>) -> Vec<EntityId> {
    let mut chain: Vec<EntityId> =
        request.members.iter().map(|asked| asked.entity.clone()).collect();
    for asked in request.members {
        let mut next =
            tenant.named.get(&(asked.entity.clone(), asked.limits.stamp.0)).cloned().flatten();
        while let Some(entity) = next.filter(|entity| !chain.contains(entity)) {
            // Nobody was asked about this one, so there is no stamp that tells when it was read: as
            // it is now.
            next = tenant.config.cascades_to(&entity);
            chain.push(entity);
        }
    }
    chain
}

fn prepare(tenant: &Tenant, request: &ConsumeRequest<'_>) -> Result<Vec<Prepared>, Stop> {
    let mut prepared = Vec::new();
    for (index, asked) in request.members.iter().enumerate() {
        prepared.push(prepare_member(tenant, asked, request.now.0).map_err(|stop| match stop {
            Stop::Stale(_) => Stop::Stale(index),
            Stop::Disabled(_) => Stop::Disabled(index),
        })?);
    }
    Ok(prepared)
}

fn prepare_member(tenant: &Tenant, asked: &MemberTake<'_>, now: i64) -> Result<Prepared, Stop> {
    let key = (asked.entity.clone(), asked.resource.clone());
    let in_force = asked.limits;
    let mut past = tenant.past.get(&key).cloned().unwrap_or_else(BTreeMap::new);
    if tenant.config.blocked_by(asked.entity, asked.resource).is_some() {
        return Err(Stop::Disabled(0));
    }
    if asked.is_unlimited() {
        let bucket = Bucket::full(&[], in_force.stamp.0, false, now, &mut past);
        return Ok(Prepared { key, bucket, past, synced: false, is_unlimited: true });
    }
    let Some(stored) = tenant.buckets.get(&key) else {
        let bucket = Bucket::full(&in_force.limits, in_force.stamp.0, false, now, &mut past);
        return Ok(Prepared { key, bucket, past, synced: false, is_unlimited: false });
    };
    let mut bucket = stored.clone();
    if bucket.matches(&in_force.limits) {
        // The time of a bucket that is far ahead is set right, whatever the answer.
        let synced = bucket.is_contradicted_by(now);
        if synced {
            bucket.refill(now);
        }
        return Ok(Prepared { key, bucket, past, synced, is_unlimited: false });
    }
    // Only a configuration at least as fresh as the bucket's may change its limits; a call's own
    // limits are fresh.
    if in_force.source != LimitSource::Call && in_force.stamp.0 < bucket.stamp {
        return Err(Stop::Stale(0));
    }
    bucket.sync(&in_force.limits, in_force.stamp.0, now, &mut past);
    Ok(Prepared { key, bucket, past, synced: true, is_unlimited: false })
}

fn answers_as_stopped(stop: &Stop, said: &ConsumeOutcome) -> Result<(), Broken> {
    let same = match (stop, said) {
        (Stop::Stale(expected), ConsumeOutcome::Stale { member })
        | (Stop::Disabled(expected), ConsumeOutcome::Blocked { member, .. }) => expected == member,
        _ => false,
    };
    if same { Ok(()) } else { Err(format!("the store said {said:?}, expected {stop:?}")) }
}

/// Checks every report of a decision; true when it was a grant.
fn check_reports(
    prepared: &[Prepared],
    request: &ConsumeRequest<'_>,
    said: &ConsumeOutcome,
) -> Result<bool, Broken> {
    let now = i128::from(request.now.0);
    let asked = || {
        let members = prepared.iter().zip(request.members).enumerate();
        members.flat_map(|(index, (member, asked))| {
            asked.takes.iter().map(move |take| (index, member, take))
        })
    };
    let lead = |bucket: &Bucket| bucket.lead_of(request.now.0);
    let has = |bucket: &Bucket, limit: u8| bucket.balance_at(usize::from(limit), now, lead(bucket));
    let short = asked()
        .any(|(_, member, take)| has(&member.bucket, take.limit) < i128::from(take.amount.0));
    let reports = match (said, short) {
        (ConsumeOutcome::Granted(Grant { reports, .. }), false)
        | (ConsumeOutcome::Refused(reports), true) => reports,
        _ => {
            return Err(format!(
                "the store said {said:?}, expected a {}",
                if short { "refusal" } else { "grant" }
            ));
        }
    };
    if reports.len() != asked().count() {
        return Err(format!("{} reports for {} takes", reports.len(), asked().count()));
    }
    for (report, (index, member, take)) in reports.iter().zip(asked()) {
        let limit = usize::from(take.limit);
        let amount = i128::from(take.amount.0);
        let balance = has(&member.bucket, take.limit);
        let left = if short { balance } else { balance - amount };
        let named = (usize::from(report.member), report.limit, report.requested)
            == (index, take.limit, take.amount);
        if !named || i128::from(report.balance.0) != left {
            return Err(format!(
                "the store reported {report:?}, expected a balance of {left} milli of member {index}, take {take:?}"
            ));
        }
        check_wait(&member.bucket, limit, amount, request.now.0, report.wait)?;
    }
    Ok(!short)
}

/// A wait is exact when the take would pass after it, and would not a millisecond earlier.
fn check_wait(
    bucket: &Bucket,
    limit: usize,
    amount: i128,
    now: i64,
    wait: Wait,
) -> Result<(), Broken> {
    let lead = bucket.lead_of(now);
    let passes_at = |at: i128| bucket.balance_at(limit, at, lead) >= amount;
    let now = i128::from(now);
    let right = match wait {
        Wait::None => passes_at(now),
        Wait::Never => amount > bucket.accounts[limit].params.capacity,
        Wait::After(wait) => {
            passes_at(now + i128::from(wait.get())) && !passes_at(now + i128::from(wait.get()) - 1)
        }
    };
    if right {
        Ok(())
    } else {
        Err(format!(
            "a wait of {wait} for {amount} milli of {} is not exact",
            bucket.accounts[limit].name
        ))
    }
}
