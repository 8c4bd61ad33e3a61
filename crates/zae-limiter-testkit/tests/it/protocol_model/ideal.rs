//! The ideal bucket: exact, never deleted, fed with the same operations at true time, and the
//! meters that judge grants alone.

use crate::protocol_model::item::Params;

/// One limit of the ideal bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ideal {
    pub(crate) params: Params,
    pub(crate) tk: i8,
    /// What the limit lacks beyond its balance because its capacity was lowered, exactly (core's
    /// `BucketState::gap`).
    pub(crate) gap: i8,
    /// A leaky meter of grants per capacity the limit ever has: `meters[k]` looks at windows in
    /// which no capacity above `caps[k]` was in force.
    pub(crate) meters: [i8; 2],
}

impl Ideal {
    pub(crate) fn full(params: Params) -> Ideal {
        Ideal { params, tk: params.cp, gap: 0, meters: [0; 2] }
    }

    /// What it lacks to be full at every capacity it ever had. At 0, forgetting it and starting it
    /// anew is the same.
    pub(crate) fn lack(&self) -> i8 {
        self.params.cp - self.tk + self.gap
    }

    pub(crate) fn tick(&mut self) {
        self.lift(self.params.ra);
    }

    pub(crate) fn take(&mut self, amount: i8, caps: [i8; 2]) {
        self.tk -= amount;
        for (meter, cap) in self.meters.iter_mut().zip(caps) {
            if self.params.cp <= cap {
                *meter += amount;
            }
        }
    }

    /// A charge that no gate admitted: a correction, or a second landing of one grant.
    pub(crate) fn charge(&mut self, amount: i8) {
        self.tk -= amount;
    }

    pub(crate) fn credit(&mut self, amount: i8) {
        self.lift(amount);
    }

    /// Other parameters for a limit that is in force: cut, never raised, and what the cut hides is
    /// remembered.
    pub(crate) fn sync(&mut self, params: Params, caps: [i8; 2]) {
        let lacked = self.lack();
        self.tk = self.tk.min(params.cp);
        self.gap = (lacked - (params.cp - self.tk)).max(0);
        self.params = params;
        for (meter, cap) in self.meters.iter_mut().zip(caps) {
            if params.cp > cap {
                *meter = 0;
            }
        }
    }

    /// A limit that was forgotten starts anew. If it was not whole, the ideal bucket has not
    /// forgotten.
    pub(crate) fn restart(&mut self, params: Params, caps: [i8; 2]) {
        let was_whole = self.lack() <= 0;
        self.sync(params, caps);
        if was_whole {
            (self.tk, self.gap) = (params.cp, 0);
        }
    }

    /// Refill or refund: beyond the capacity it repays the gap.
    fn lift(&mut self, amount: i8) {
        let balance = self.tk + amount;
        self.tk = balance.min(self.params.cp);
        self.gap = (self.gap - (balance - self.tk)).max(0);
        self.meters = self.meters.map(|meter| (meter - amount).max(0));
    }
}
