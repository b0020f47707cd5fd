//! Whose a name is: the names of nodes and users, and the keys that nodes are known by.

use serde::{Deserialize, Serialize};

use crate::{Span, Time};

/// Names end up in listings, logs, paths and command lines.
pub const IDENTITY_CHARS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{}' is no name: write 1 to {IDENTITY_CHARS_MAX} letters, digits and any of - _ . @ +, with a letter, a digit or _ first",
    .0.escape_debug()
)]
pub struct BadName(pub String);

/// The one rule for names of nodes, and of users in tokens. `.` and `..` would be paths, and `-x` an
/// option.
pub fn check_name(name: &str) -> Result<(), BadName> {
    let fine = |c: char| c.is_alphanumeric() || "-_.@+".contains(c);
    let first = name.chars().next().is_some_and(|c| c.is_alphanumeric() || c == '_');
    if first && name.chars().count() <= IDENTITY_CHARS_MAX && name.chars().all(fine) {
        return Ok(());
    }
    Err(BadName(name.to_owned()))
}

/// Who may call itself by the name of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum NodeKeyRecord {
    /// Who holds this key, and nobody else.
    Held {
        /// The hex of SHA-256 of the public key.
        key: String,
        since: Time,
        /// More than one agent holds it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shared: Option<SharedKey>,
    },
    /// Nobody, until an agent joins by this name again.
    Removed { since: Time, by: String },
}

impl NodeKeyRecord {
    /// Certificates hold for 90 days, and those of a node that was removed are not renewed: after
    /// this long none is left that had to be refused.
    pub const REMOVED_KEPT: Span = Span::secs(100 * 86_400);

    pub fn shared(&self) -> Option<&SharedKey> {
        match self {
            NodeKeyRecord::Held { shared, .. } => shared.as_ref(),
            NodeKeyRecord::Removed { .. } => None,
        }
    }
}

/// Two agents answered at the same time with the key of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedKey {
    pub since: Time,
    /// From where the one calls that was there first.
    pub first: String,
    pub second: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_paths_and_no_options() {
        for fine in ["n1", "gpu-07.rack_2", "ä", "7", "_x", "ann@example.org", "a+b", "a..b"] {
            assert_eq!(check_name(fine), Ok(()), "{fine}");
        }
        let long = "x".repeat(IDENTITY_CHARS_MAX + 1);
        for bad in ["", ".", "..", "-x", "--force", ".hidden", "@x", "a/b", "a b", "a\n", &long] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        let said = check_name("a\u{1b}[2J").unwrap_err().to_string();
        assert!(!said.contains('\u{1b}') && said.contains("1 to 64"), "{said}");
    }
}
