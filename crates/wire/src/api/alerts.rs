//! What is wrong, and what is looked for.

use serde::{Deserialize, Serialize};
use tutti_model::{Alert, Terms, WatchRule};
use utoipa::{IntoParams, ToSchema};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct AlertQuery {
    /// With those that are over, as far as they are remembered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AlertList {
    /// What stands first, newest first.
    pub alerts: Vec<Alert>,
    /// What is looked for, with the terms in force.
    pub rules: Vec<RuleRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleRow {
    pub rule: WatchRule,
    #[serde(flatten)]
    pub terms: Terms,
}
