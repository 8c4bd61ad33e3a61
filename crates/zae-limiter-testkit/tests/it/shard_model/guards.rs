//! Every guard of the rules for shards, as a switch: a model with one of them off has to break a
//! promise, or the guard is a second line of defence.

macro_rules! guards {
    ($($(#[$text:meta])* $name:ident,)*) => {
        /// A condition or a computation of the rules for shards.
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
    /// S1: shares are halved bit by bit, rounded up for a 0 and down for a 1, so that they sum.
    SharesSum,
    /// FAST: `shard_count` as in the image.
    FastPinsN,
    /// ADD, FILL: `shard_count` as in the image.
    RefillPinsN,
    /// Blind FILL: `shard_count` as in the image.
    BlindPinsN,
    /// A parameter write: `shard_count` as in the image.
    SyncPinsN,
    /// S4a: FAST and blind FILL pin the era.
    PinsEra,
    /// S3: a split pins the donor's `shard_count`.
    SplitPinsN,
    /// S3: a split pins the donor's `rf`.
    SplitPinsRf,
    /// S3: a split moves the donor's `rf` by 1 ms.
    SplitMovesRf,
    /// S3: a split bounds the donor's balance from both sides.
    SplitPinsTk,
    /// S3: a split pins every `cp ra rp` of the donor.
    SplitPinsParams,
    /// S3: a split needs a donor that is not disabled.
    SplitPinsOff,
    /// S3: a split halves the gap.
    SplitHalvesGap,
    /// S3: the child of a split is not there.
    ChildAbsent,
    /// S4: which limits are pinned is decided once, at the first split.
    PinOnce,
    /// S4: a pinned limit is taken from shard 0 only.
    PinnedAtZero,
    /// S4b: a limit that is seeded on a shard starts with the share of that shard.
    SeedShare,
    /// G4: a removed limit leaves a shard only when it is whole there.
    DropWhole,
    /// G1: a lowered limit records its gap share by share.
    GapByShare,
    /// S5: nothing expires while the bucket has several shards.
    NoTtlSharded,
    /// S2: only shard 0 is made by a put.
    OnlyZeroIsMade,
    /// S6: a fold pins every balance exactly.
    FoldPinsTk,
    /// S6: a fold refills every shard up to one instant before it sums.
    FoldAligns,
    /// S6: a fold sums what is left of the gaps.
    FoldSumsGap,
    /// S6: a fold needs the same limits on every shard.
    FoldSameParams,
    /// S6: a fold pins the `rf` of every shard.
    FoldPinsRf,
    /// S6: a fold takes all shards.
    FoldAllLeaves,
    /// S8a: a refusal needs every shard of the tree.
    GatherComplete,
    /// S8a: a refusal needs images of one era.
    GatherEra,
    /// S8b: every leg of a gather is a FAST or a refill with all its conditions.
    GatherPins,
    /// S8d: every leg of a gather carries `lw <> nonce`.
    GatherNonce,
    /// S8d: a gather whose reply was lost is sent again to the same shards.
    GatherSameShards,
    /// S7: a credit stops at the share.
    CreditClamped,
    /// S7: a credit stops at the share of now, not at that of the take.
    CreditShare,
    /// S7: a credit whose shard is gone goes to the donor.
    CreditWalks,
    /// S7: a credit needs the shard to exist.
    CreditExists,
    /// S12: the flag goes over the keys from shard 0 on, not over a list made before.
    WalkInOrder,
    /// S11: a deletion deletes all shards.
    DeleteAll,
    /// S10: a missing shard is made empty, or with what its donor has too much.
    RepairEmptyOrSurplus,
    /// S10: a repair pins the donor's `rf`.
    RepairPinsRf,
    /// S3c: the removal of an orphan checks that its donor still has the count of the image.
    OrphanPinsDonor,
    /// S3c: the removal of an orphan pins the `rf`, the count and the era of the orphan.
    OrphanPinsRf,
}
