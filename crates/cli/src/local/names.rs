//! Many processes in few words: a thousand names help nobody.

use super::{CONTROLLER, ROUTER};
use crate::show::count;

/// So many are named one by one.
const NAMED: usize = 8;

/// `n1, n2, n3`, or `n1, n2, … n1000 (1,000 in all)`.
pub fn list<T: AsRef<str>>(names: &[T]) -> String {
    let name = |n: usize| names[n].as_ref();
    if names.len() <= NAMED {
        return names.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    }
    let all = tutti_model::thousands(names.len() as u64);
    format!("{}, {}, … {} ({all} in all)", name(0), name(1), name(names.len() - 1))
}

/// What was stopped: names of processes, and sentences about others. `n1, n2, controller`, or `the
/// controller, the router and 1,000 agents (n1 … n1000)`.
pub fn stopped(names: &[String]) -> String {
    if names.len() <= NAMED {
        return names.join(", ");
    }
    let is_agent = |name: &&String| *name != CONTROLLER && *name != ROUTER && !name.contains(' ');
    let agents: Vec<&String> = names.iter().filter(is_agent).collect();
    let mut parts: Vec<String> = Vec::new();
    for role in [CONTROLLER, ROUTER] {
        parts.extend(names.iter().any(|name| name == role).then(|| format!("the {role}")));
    }
    if let (Some(first), Some(last)) = (agents.first(), agents.last()) {
        parts.push(format!("{} ({first} … {last})", count(agents.len() as u64, "agent")));
    }
    parts.extend(names.iter().filter(|name| name.contains(' ')).cloned());
    match parts.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => parts.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(n: usize) -> Vec<String> {
        (1..=n).map(|i| format!("n{i}")).collect()
    }

    #[test]
    fn few_are_named_and_many_are_counted() {
        assert_eq!(list(&agents(3)), "n1, n2, n3");
        assert_eq!(list(&agents(1000)), "n1, n2, … n1000 (1,000 in all)");
        assert_eq!(list::<String>(&[]), "");
        let with = |n: usize, more: &[&str]| {
            let mut names = agents(n);
            names.extend(more.iter().map(|s| (*s).to_owned()));
            stopped(&names)
        };
        assert_eq!(with(2, &[CONTROLLER]), "n1, n2, controller");
        assert_eq!(
            with(1000, &[ROUTER, CONTROLLER]),
            "the controller, the router and 1,000 agents (n1 … n1000)"
        );
        let orphans = "3 processes of jobs whose agent was gone";
        assert_eq!(
            with(9, &[orphans, CONTROLLER]),
            format!("the controller, 9 agents (n1 … n9) and {orphans}")
        );
        assert_eq!(with(9, &[]), "9 agents (n1 … n9)");
    }
}
