//! `aggregate`: the worker that counts usage from the stream of a stack.

use std::time::Duration;

use serde::Serialize;
use zae_limiter::{Clock, SystemClock};
use zae_limiter_aggregator::{Kept, Settings as Counting, Totals, Turn, Worker};

use super::shared::stop;
use crate::args::aggregate::AggregateArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::printer::Printer;
use crate::settings::StorePlace;
use crate::table::{Cell, Text};
use crate::{dynamodb, engine, patience};

/// The name of a worker that a supervisor keeps alive: there is one at a time, so the next need not
/// wait for the lease of one that died.
const SUPERVISED: &str = "local";

/// The same problem is told again after so long.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// What was done, from the start of the worker to its end.
#[derive(Serialize)]
struct Form {
    stack: String,
    batches: u64,
    records: u64,
    takes: i64,
    snapshots: u64,
    counted: u64,
    repeated: u64,
    poison: u64,
    lost: u64,
    skipped: u64,
    refills: u64,
    splits: u64,
    levelled: u64,
    folds: u64,
    usage_gaps: u64,
    stream_shards_done: u64,
    stream_shards_elsewhere: u64,
    leases_lost: u64,
    trimmed: u64,
    failures: u64,
}

pub(crate) async fn run(context: &Context<'_>, args: AggregateArgs) -> anyhow::Result<Exit> {
    let StorePlace::Dynamo(place) = &context.settings.store else {
        let store = &context.settings.store;
        let failure = Failure::usage(format!("{store} has no stream: it counts usage by itself"));
        return Err(failure.hint("name a DynamoDB stack with --name STACK").into());
    };
    let folder = context.settings.engine_folder.as_ref().filter(|_| args.with_supervisor);
    // `local down` waits for it.
    let _lock = folder.map(engine::worker_lock).transpose()?;
    let shards_max = args.shards_max.or(place.shards_max);
    let counted = |counting: Counting| {
        let shards_max = shards_max.unwrap_or(counting.shards_max);
        counting.shards_max(shards_max).folds(!args.keep_shards)
    };
    let mut worker = dynamodb::worker(place, context.settings, counted).await?;
    if args.with_supervisor {
        worker = worker.owner(SUPERVISED);
    }
    // From here on it waits because there is nothing to do.
    patience::told();
    let mut teller = Teller::new(context.printer);
    let ended = if args.once {
        worker.drain(|turn| teller.tell(turn)).await
    } else {
        let stack = &place.stack;
        context.printer.note(&format!("counting the usage of {stack} from its stream"));
        worker.run(stop::wanted(args.with_supervisor)?, |turn| teller.tell(turn)).await
    };
    let form = Form::new(&place.stack, &worker);
    context.printer.answer(&form, &form.text())?;
    if form.stream_shards_elsewhere > 0 {
        context.printer.note(&format!(
            "another worker reads {} of the stream shards, and counts what is in them",
            form.stream_shards_elsewhere
        ));
    }
    ended.map_err(|error| Failure::stream(error.to_string()))?;
    Ok(Exit::Ok)
}

impl Form {
    fn new(stack: &str, worker: &Worker) -> Form {
        let totals: &Totals = worker.totals();
        Form {
            stack: stack.to_owned(),
            batches: totals.batches,
            records: totals.records,
            takes: totals.takes,
            snapshots: totals.snapshots,
            counted: totals.counted,
            repeated: totals.repeated,
            poison: totals.poison,
            lost: totals.lost,
            skipped: totals.skipped,
            refills: totals.kept.refills,
            splits: totals.kept.splits,
            levelled: totals.kept.levelled,
            folds: totals.kept.folds,
            usage_gaps: totals.usage_gaps,
            stream_shards_done: totals.shards_done,
            stream_shards_elsewhere: totals.elsewhere,
            leases_lost: totals.leases_lost,
            trimmed: totals.trimmed,
            failures: totals.failures,
        }
    }

    fn text(&self) -> Text {
        let mut fields = vec![
            ("stack", Cell::plain(&self.stack)),
            ("records", Cell::plain(format!("{} in {} batches", self.records, self.batches))),
            ("takes", Cell::plain(self.takes)),
            ("snapshots", Cell::plain(format!("{} written", self.snapshots))),
        ];
        let counts = [
            ("refills", self.refills),
            ("splits", self.splits),
            ("levelled", self.levelled),
            ("folds", self.folds),
            ("gaps", self.usage_gaps),
            ("unreadable", self.poison),
            ("lost", self.lost),
            ("skipped", self.skipped),
            ("failures", self.failures),
        ];
        let there = counts.into_iter().filter(|(_, count)| *count > 0);
        fields.extend(there.map(|(label, count)| (label, Cell::plain(count))));
        Text::new().fields(fields)
    }
}

/// Tells what goes wrong, each thing once a minute at most, and every change of shards.
struct Teller<'a> {
    printer: &'a Printer,
    clock: SystemClock,
    told: Option<(String, Duration)>,
}

impl<'a> Teller<'a> {
    fn new(printer: &'a Printer) -> Teller<'a> {
        Teller { printer, clock: SystemClock::new(), told: None }
    }

    fn tell(&mut self, turn: &Turn) {
        let Kept { splits, levelled, folds, .. } = turn.kept;
        if splits + levelled + folds > 0 {
            self.printer.note(&format!(
                "upkeep of hot buckets: {splits} split, {levelled} levelled, {folds} folded"
            ));
        }
        let errors = turn.reports.iter().flat_map(|report| &report.errors);
        let Some(problem) = turn.problems.iter().chain(errors).next() else { return };
        let now = self.clock.monotonic();
        let is_told = |(told, at): &(String, Duration)| {
            told == problem && now.saturating_sub(*at) < AGAIN_AFTER
        };
        if !self.told.as_ref().is_some_and(is_told) {
            self.printer.warning(problem);
            self.told = Some((problem.clone(), now));
        }
    }
}
