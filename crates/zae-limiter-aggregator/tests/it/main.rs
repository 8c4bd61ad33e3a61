//! The aggregator over tables in memory and a real engine.

mod worker;
