//! The archive in S3.
