//! Filters, as people type them. Of jobs they are answered by the controller, which knows all of them.

use tutti_model::{JobState, TaskId};
use tutti_wire::api::{JobQuery, NodeRow};

use crate::show::nodes::{health, place};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    pub user: Option<String>,
    pub team: Option<String>,
    pub state: Option<String>,
    pub id: Option<String>,
    /// Part of the name.
    pub name: Option<String>,
    /// The first word that was meant as a state and is none. The others count.
    pub unknown_state: Option<String>,
}

impl JobFilter {
    /// `user:ada team:vision state:failed 12 train`: a number is an id, a state is a state, the rest is
    /// part of the name.
    pub fn parse(text: &str) -> JobFilter {
        let mut filter = JobFilter::default();
        let mut name = Vec::new();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once([':', '=']).unwrap_or(("", word));
            let value = value.to_owned();
            match key {
                // While it is being typed.
                "user" | "team" | "state" | "id" if value.is_empty() => {}
                "user" => filter.user = Some(value),
                "team" => filter.team = Some(value),
                "state" => {
                    filter.unknown_state = unknown_state(&value);
                    filter.state = known_state(&value);
                }
                "id" => filter.id = ids(&value),
                "" if ids(&value).is_some() => filter.id = ids(&value),
                "" if JobState::named(&value).is_some() => filter.state = Some(value),
                _ => name.push(word),
            }
        }
        filter.name = (!name.is_empty()).then(|| name.join(" "));
        filter
    }

    pub fn query(&self) -> JobQuery {
        JobQuery {
            user: self.user.clone(),
            team: self.team.clone(),
            name: self.name.clone(),
            id: self.id.clone(),
            ..JobQuery::default()
        }
    }
}

/// Of a list, those that are ids. None if there are none.
fn ids(list: &str) -> Option<String> {
    let ids: Vec<&str> = list.split(',').filter(|id| id.parse::<TaskId>().is_ok()).collect();
    (!ids.is_empty()).then(|| ids.join(","))
}

/// Of a list, what is known; half a word while it is typed is not.
fn known_state(list: &str) -> Option<String> {
    let known: Vec<&str> = list.split(',').filter(|word| is_state(word)).collect();
    (!known.is_empty()).then(|| known.join(","))
}

fn unknown_state(list: &str) -> Option<String> {
    list.split(',').find(|word| !word.is_empty() && !is_state(word)).map(str::to_owned)
}

fn is_state(word: &str) -> bool {
    word == "active" || JobState::named(word).is_some()
}

/// Every word is somewhere in the node's row.
pub fn wants_node(text: &str, node: &NodeRow) -> bool {
    if text.is_empty() {
        return true;
    }
    let model = node.facts.gpu_model.as_deref().unwrap_or_default();
    let jobs: Vec<String> = node.jobs.iter().map(ToString::to_string).collect();
    let row = [
        node.name.as_str(),
        node.state.as_str(),
        model,
        &place(&node.place),
        &health(node).0,
        &jobs.join(" "),
    ];
    let row = row.join(" ").to_lowercase();
    text.to_lowercase().split_whitespace().all(|word| row.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::nodes::tests::node;

    #[test]
    fn words_become_a_query() {
        let filter = JobFilter::parse("user:ada team=vision  big run failed");
        assert_eq!(filter.user.as_deref(), Some("ada"));
        assert_eq!(filter.team.as_deref(), Some("vision"));
        assert_eq!(
            (filter.name.as_deref(), filter.state.as_deref()),
            (Some("big run"), Some("failed"))
        );
        assert_eq!(JobFilter::parse("12_3").id.as_deref(), Some("12_3"));
        assert_eq!(JobFilter::parse("id:12,13,x").id.as_deref(), Some("12,13"));
        assert_eq!(JobFilter::parse("state:pending,runn").state.as_deref(), Some("pending"));
        let half = JobFilter::parse("user: state:pend");
        assert_eq!(half.unknown_state.as_deref(), Some("pend"));
        assert_eq!(JobFilter { unknown_state: None, ..half }, JobFilter::default());
        assert_eq!(JobFilter::parse("state:active,failed,").unknown_state, None);
        assert_eq!(JobFilter::parse("a:b").name.as_deref(), Some("a:b"));
        assert_eq!(filter.query().team.as_deref(), Some("vision"));
    }

    #[test]
    fn nodes_are_found_by_anything_in_their_row() {
        for text in ["", "N1", "h100 drain", "7"] {
            assert!(wants_node(text, &node()), "{text}");
        }
        assert!(!wants_node("n1 a100", &node()));
    }
}
