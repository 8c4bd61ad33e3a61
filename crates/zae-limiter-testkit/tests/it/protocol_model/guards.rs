//! Every guard of the protocol, as a switch: a model with one of them off has to break a property.
//! The rules that the guards keep are in `docs/protocol.md`, which names the guards of each.

macro_rules! guards {
    ($($(#[$text:meta])* $name:ident,)*) => {
        /// A condition or a computation of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Guard {
            $($(#[$text])* $name,)*
        }

        impl Guard {
            /// All of them.
            pub(crate) const ALL: &[Guard] = &[$(Guard::$name),*];
        }
    };
}

guards! {
    /// FAST take: `tk <= C - up(r0)`.
    FastCeiling,
    /// FAST adjust: the same.
    AdjustCeiling,
    /// FAST: `rf >= r0`.
    FastRfFloor,
    /// FAST take: `tk >= c`.
    FastFloor,
    /// FAST: `cp ra rp` as resolved.
    FastPinsCp,
    /// FAST: `ttl > now`.
    FastTtl,
    /// ADD and FILL instead of "add what the image lacks, if `tk <= image`".
    TwoModes,
    /// ADD, FILL: `rf = image`.
    RefillPinsRf,
    /// ADD: `tk < C - add`.
    AddCeiling,
    /// FILL: `tk >= C - add`.
    FillFloor,
    /// ADD take: `tk >= c - add`.
    AddFloor,
    /// ADD, FILL: `cp ra rp` as in the image.
    RefillPinsCp,
    /// ADD, FILL: `vu` as in the image.
    RefillPinsVu,
    /// `rf' = max(rf, now)`.
    RfMonotone,
    /// Blind FILL: `rf <= r1`.
    BlindRf,
    /// Blind FILL: `ca` as in the image.
    BlindCa,
    /// A parameter write moves `ca`, even if its own reading time is older.
    CaMoves,
    /// FAST: `lw <> nonce`.
    NonceFast,
    /// ADD, FILL: `lw <> nonce`.
    NonceRefill,
    /// Create: a lost race is compared with our own nonce first.
    NonceCreate,
    /// A re-send takes a fresh `now`.
    FreshNow,
    /// A credit of unknown fate is dropped.
    CreditOnce,
    /// A credit stops at the capacity.
    CreditClamped,
    /// A credit pins `cp`.
    CreditPinsCp,
    /// A credit needs the item to exist.
    CreditExists,
    /// A parameter write needs a causal read or `ca` + margin.
    CausalRead,
    /// A parameter write pins `rf` and every `cp ra rp` of its image.
    SyncPinned,
    /// A parameter write pins `vu` as read.
    SyncPinsVu,
    /// A parameter write is not sent on an image with `vu` set: that is cleared first, by a refill.
    SyncNeedsNoVu,
    /// A write that clears `vu` sets `ca` to its own time: a foreign change may be that young.
    VuStampsCa,
    /// A write that clears `vu` moves `rf`.
    VuMovesRf,
    /// A write that changes parameters moves `rf`.
    SyncMovesRf,
    /// A removed limit stays until a write proves it full.
    RemovedKept,
    /// `ttl` covers debt.
    TtlDebt,
    /// `ttl' = max(stored, ..)`.
    TtlMax,
    /// FAST adjust: `tk >= d - (K-1)·cp`, debt that the stored `ttl` covers.
    FastDebt,
    /// ADD: `tk >= min(0, image)`, because `ttl` is reckoned from the image's debt.
    AddDebt,
    /// An adjust that finds no bucket makes it.
    AdjustCreates,
    /// The refill forms of an adjust write `ttl` too.
    AdjustRevives,
    /// G1: a lowered limit records its gap.
    GapRecorded,
    /// G2: what FILL takes off the gap is proven by `tk >= C - add + y`.
    GapProven,
    /// G2: a parameter write takes off the gap at once what its FILL proves.
    SyncRepaysGap,
    /// G2: ADD leaves the gap.
    GapKeptByAdd,
    /// G2: no blind FILL while there is a gap.
    GapStopsBlind,
    /// G3: `ttl` covers the gap.
    GapTtl,
    /// G4: a removed limit with a gap stays.
    GapKeepsRemoved,
}
