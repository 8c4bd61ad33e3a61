//! The conformance suite on buckets that are split in four as soon as they are made, with limits
//! divided down to single millitokens. No test knows of shards, so everything that holds of a
//! bucket must hold of its shards together.

use crate::conformance::OnEngine;

zae_limiter_store::conformance_suite!(OnEngine::new(4));
