//! Time limits that a policy gives to jobs that name none.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{DEFAULT_CLASS, Policy};
use crate::Span;

/// Whose default a job's time limit is. A job that named its limit itself has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DefaultTimeOf {
    Team { team: String },
    Class { class: String },
    Policy,
}

/// The limit that a job has because it names none, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitByPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<DefaultTimeOf>,
}

impl DefaultTimeOf {
    /// `the default of team vision`.
    pub fn in_words(&self) -> String {
        match self {
            DefaultTimeOf::Team { team } => format!("the default of team {team}"),
            DefaultTimeOf::Class { class } => format!("the default of class {class}"),
            DefaultTimeOf::Policy => "the default of the cluster".to_owned(),
        }
    }
}

impl Policy {
    /// The limit of a job that names none, and whose it is: that of the nearest team of its line,
    /// else of its class, else of the whole cluster.
    pub fn default_time(&self, team: &str, class: Option<&str>) -> Option<(Span, DefaultTimeOf)> {
        let of_team = self.line_of(team).into_iter().find_map(|name| {
            let time = self.teams.get(name)?.default_time?;
            Some((time, DefaultTimeOf::Team { team: name.to_owned() }))
        });
        let of_class = || {
            let class = class.unwrap_or(DEFAULT_CLASS);
            let time = self.classes.get(class)?.default_time?;
            Some((time, DefaultTimeOf::Class { class: class.to_owned() }))
        };
        let of_all = || Some((self.default_time?, DefaultTimeOf::Policy));
        of_team.or_else(of_class).or_else(of_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Team;

    #[test]
    fn the_nearest_team_goes_before_the_class_and_that_before_the_cluster() {
        let team = |parent: Option<&str>, hours: Option<u64>| Team {
            parent: parent.map(str::to_owned),
            default_time: hours.map(|h| Span::secs(3600 * h)),
            ..Team::default()
        };
        let mut policy = Policy::default();
        assert_eq!(policy.default_time("a", None), None);
        policy.default_time = Some(Span::secs(3600));
        policy.classes.get_mut("scavenger").unwrap().default_time = Some(Span::secs(7200));
        policy.teams.insert("a".to_owned(), team(None, Some(3)));
        policy.teams.insert("a1".to_owned(), team(Some("a"), None));
        policy.teams.insert("b".to_owned(), team(None, None));
        let of = |team, class| {
            let (time, whose) = policy.default_time(team, class).unwrap();
            format!("{time} {}", whose.in_words())
        };
        assert_eq!(of("a1", Some("scavenger")), "3h the default of team a");
        assert_eq!(of("b", Some("scavenger")), "2h the default of class scavenger");
        assert_eq!(of("b", None), "1h the default of the cluster");
        assert!(policy.problems().is_empty());
        policy.teams.get_mut("b").unwrap().default_time = Some(Span(0));
        assert_eq!(policy.problems()[0].path, "teams.b.default_time");
    }
}
