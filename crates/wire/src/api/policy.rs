//! Answers about the policy.

use serde::{Deserialize, Serialize};
use tutti_model::PolicyEffects;
use utoipa::ToSchema;

use super::ProblemRow;
use crate::policyfile::Change;

/// The policy was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyReplaced {
    /// 1.
    pub changed: u64,
    /// What is allowed, but hardly meant: a guarantee of GPUs that are not there, a reservation of a
    /// node that nobody has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<ProblemRow>,
}

/// What a policy would change, and what that would do to jobs at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyPreview {
    /// What differs from the running policy, in the words of the policy file.
    pub changes: Vec<Change>,
    #[serde(flatten)]
    pub effects: PolicyEffects,
}
