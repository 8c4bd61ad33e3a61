//! Where faults come from: one seeded sequence, drawn from by every call above the store.

use std::sync::{Arc, Mutex, PoisonError};

use zae_limiter_store::{Fault, FaultPlan, StoreErrorKind};

use crate::rng::Rng;
use crate::table::{self, Odds};

/// How bad things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Nothing fails.
    Clear,
    /// Now and then something fails or takes its time.
    Fair,
    /// Often.
    Rough,
    /// Nearly everything.
    Outage,
}

struct Sky {
    rng: Rng,
    weather: Weather,
    drawn: u64,
    /// Where calls fail on the way to a table instead of before and after the store.
    table: Option<table::Faults>,
}

/// The plan of all clients of a run.
#[derive(Clone)]
pub(crate) struct Faults(Arc<Mutex<Sky>>);

impl Faults {
    pub(crate) fn new(rng: Rng, table: Option<table::Faults>) -> Faults {
        Faults(Arc::new(Mutex::new(Sky { rng, weather: Weather::Clear, drawn: 0, table })))
    }

    /// Changes the weather; returns what it was.
    pub(crate) fn become_weather(&self, weather: Weather) -> Weather {
        let mut sky = self.lock();
        if let Some(table) = &sky.table {
            table.set_odds(match weather {
                Weather::Clear => Odds::CLEAR,
                Weather::Fair => Odds::FAIR,
                Weather::Rough => Odds::ROUGH,
                Weather::Outage => Odds::OUTAGE,
            });
        }
        std::mem::replace(&mut sky.weather, weather)
    }

    /// Faults that really happened so far.
    pub(crate) fn drawn(&self) -> u64 {
        let sky = self.lock();
        sky.drawn + sky.table.as_ref().map_or(0, |table| table.drawn() as u64)
    }

    /// For how many polls an answer is on its way.
    pub(crate) fn echo(&self) -> u32 {
        let mut sky = self.lock();
        if sky.weather == Weather::Clear || !sky.rng.chance(15) {
            return 0;
        }
        u32::try_from(sky.rng.between(1, 2)).unwrap_or(0)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sky> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultPlan for Faults {
    fn next(&self, _operation: &'static str) -> Fault {
        let mut sky = self.lock();
        // Nothing, pending, refused before, reply lost, never begun, never answered.
        let odds = match sky.weather {
            Weather::Clear => return Fault::None,
            Weather::Fair => [70, 20, 3, 3, 2, 2],
            Weather::Rough => [30, 25, 15, 15, 8, 7],
            Weather::Outage => [5, 5, 40, 25, 15, 10],
        };
        let choices: Vec<(u64, usize)> = odds.into_iter().zip(0..).collect();
        let fault = match sky.rng.weighted(&choices) {
            0 => Fault::None,
            1 => Fault::Yield(u32::try_from(sky.rng.between(1, 3)).unwrap_or(1)),
            2 => Fault::FailBefore(*sky.rng.pick(&[
                StoreErrorKind::Unavailable,
                StoreErrorKind::Unavailable,
                StoreErrorKind::Busy,
                StoreErrorKind::Busy,
                StoreErrorKind::Full,
                StoreErrorKind::Denied,
            ])),
            // Never `Busy`: that kind promises that nothing was applied.
            3 => Fault::FailAfter(*sky.rng.pick(&[
                StoreErrorKind::Unavailable,
                StoreErrorKind::Unavailable,
                StoreErrorKind::Internal,
            ])),
            4 => Fault::Hang,
            _ => Fault::HangAfter,
        };
        sky.drawn += u64::from(!matches!(fault, Fault::None | Fault::Yield(_)));
        fault
    }
}
