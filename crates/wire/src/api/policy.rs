//! Answers about the policy.

use serde::{Deserialize, Serialize};
use tutti_model::{PolicyEffects, PolicyNotes};
use utoipa::ToSchema;

use crate::policyfile::Change;

/// The policy was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyReplaced {
    /// 1.
    pub changed: u64,
    #[serde(flatten)]
    pub notes: PolicyNotes,
}

/// What a policy would change, and what that would do to jobs at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyPreview {
    /// What differs from the running policy, in the words of the policy file.
    pub changes: Vec<Change>,
    #[serde(flatten)]
    pub effects: PolicyEffects,
}
