//! The shell for Lambda, on recorded events.
