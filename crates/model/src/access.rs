//! Who may do what. Secrets never appear here, only their hashes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{KeyLimits, Time};

/// Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees everything but secrets, changes nothing.
    Viewer,
    /// Submits jobs and acts on their own.
    User,
    Admin,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Viewer => "viewer",
            Role::User => "user",
            Role::Admin => "admin",
        })
    }
}

/// A token as the controller remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// The public part; names the token in lists and in the audit log.
    pub id: String,
    /// Hex of blake3 of the secret part.
    pub hash: String,
    pub grant: Grant,
    pub created_at: Time,
    pub created_by: String,
    pub expires_at: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "grants", rename_all = "snake_case")]
pub enum Grant {
    /// Acts as this user with this role.
    Access { user: String, role: Role },
    /// Lets agents join, as any node or only under this name; `uses` counts down to none.
    Join { node: Option<String>, uses: Option<u32> },
    /// Asks endpoints, as this user and within these limits; nothing else.
    Serve {
        user: String,
        #[serde(default)]
        limits: KeyLimits,
    },
    /// Lets a router read where replicas are and say how they do.
    Router,
}

impl Token {
    pub fn is_expired(&self, now: Time) -> bool {
        self.expires_at.is_some_and(|t| t <= now)
    }
}
