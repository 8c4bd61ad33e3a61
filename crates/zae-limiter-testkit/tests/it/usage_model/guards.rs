//! Every guard of the usage rules, as a switch: a model with one of them off has to break a
//! promise.

macro_rules! guards {
    ($($(#[$text:meta])* $name:ident,)*) => {
        /// A condition or a computation of the usage rules.
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
    /// U4: a snapshot write is conditional on the watermark.
    Watermark,
    /// U4: one watermark per bucket shard.
    PerShard,
    /// U4: one watermark per snapshot.
    PerSnapshot,
    /// U4: records that sum to nothing are written too, for their watermark.
    ZeroIsWritten,
    /// U5: of a batch that was counted in part the counted records are dropped, not the batch.
    DropRecords,
    /// U6: a child stream shard is read after its parent.
    ParentFirst,
    /// U7: the checkpoint moves after every snapshot write was answered.
    CheckpointAfter,
    /// U2: a credit that undoes a take is booked in the window of the take.
    UndoInItsHour,
    /// U2: such a credit is told by the mark it leaves, not by the event it takes off: the later
    /// legs of a gather have no event.
    UndoByItsMark,
    /// U2: a mark counts in the record that changes it, not in those of later writes.
    UndoMarkIsNew,
    /// U2: marks of two such credits differ, also for takes of one instant.
    UndoMarkIsUnique,
    /// U3: a credit that undoes a take takes its event off.
    UndoTakesEvent,
}
