//! When a job that reports steps counts as stalled, and what is done about it. In a job file:
//! `stall = "5m"`, `stall = "off"`, or `stall = { after = "5m", action = "restart" }`.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Span;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Stall {
    /// Without a step for this long. If not given, it follows from the usual time of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Span>,
    pub action: StallAction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StallAction {
    /// Started again if there is something durable to go on from, else only shown.
    #[default]
    Auto,
    Restart,
    /// Only shown.
    Note,
    /// Not even looked for.
    Off,
}

#[derive(Deserialize)]
struct Table {
    #[serde(default)]
    after: Option<Span>,
    #[serde(default)]
    action: StallAction,
}

impl<'de> Deserialize<'de> for Stall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Stall, D::Error> {
        deserializer.deserialize_any(Words)
    }
}

struct Words;

impl<'de> Visitor<'de> for Words {
    type Value = Stall;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "\"off\", a length of time such as 5m, or { after = \"5m\", action = \"restart\" }",
        )
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Stall, E> {
        if word == "off" {
            return Ok(Stall { after: None, action: StallAction::Off });
        }
        let after = word.parse::<Span>().map_err(E::custom)?;
        Ok(Stall { after: Some(after), action: StallAction::Auto })
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Stall, M::Error> {
        let Table { after, action } = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Stall { after, action })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_or_a_table_says_it() {
        let read = |text: &str| serde_json::from_str::<Stall>(text);
        let off = Stall { after: None, action: StallAction::Off };
        let auto = Stall { after: Some(Span::secs(300)), action: StallAction::Auto };
        assert_eq!(read(r#""off""#).unwrap(), off);
        assert_eq!(read(r#""5m""#).unwrap(), auto);
        let restart = Stall { action: StallAction::Restart, ..auto };
        assert_eq!(read(r#"{"after": "5m", "action": "restart"}"#).unwrap(), restart);
        for stall in [off, auto, restart] {
            assert_eq!(read(&serde_json::to_string(&stall).unwrap()).unwrap(), stall);
        }
        for wrong in [r#""never""#, r#"{"action": "kill"}"#, "7", "true"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
