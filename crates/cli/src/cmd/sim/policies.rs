//! Policies by name, and what a what-if changes in them.

use std::collections::BTreeSet;
use std::path::Path;

use tutti_model::{DEFAULT_TEAM, GpuQuota, PlacementRule, Policy, QueueOrder, Team};
use tutti_sim::trace::Trace;

use super::SimArgs;
use super::input;
use crate::fail::Fail;
use crate::terminal;

pub const NAMES: &str = "own, default, default-known, fifo, srtf, srsf, first-fit, best-fit";

pub struct Choice {
    pub name: String,
    pub policy: Policy,
    /// The scheduler knows how long jobs run.
    pub known: bool,
    /// The jobs with their teams filled in, where a quota made teams count.
    pub trace: Option<Trace>,
}

/// What the names of `--policy` start from.
struct Base {
    policy: Policy,
    /// Somebody wrote it, so it stands unless a name says otherwise.
    written: bool,
}

impl Base {
    fn of(args: &SimArgs, own: Option<&Policy>) -> Result<Base, Fail> {
        Ok(match (&args.policy_file, own) {
            (Some(path), _) => Base { policy: file(path)?, written: true },
            (None, Some(own)) => Base { policy: own.clone(), written: true },
            (None, None) => Base { policy: Policy::default(), written: false },
        })
    }

    fn choices(&self, names: &[String]) -> Result<Vec<Choice>, Fail> {
        if names.is_empty() {
            let name = if self.written { "own" } else { "default" };
            return Ok(vec![choice(name, &self.policy)?]);
        }
        names.iter().map(|name| choice(name, &self.policy)).collect()
    }
}

/// The policies of `--policy` on top of `--policy-file`, or of the defaults.
pub fn named(args: &SimArgs) -> Result<Vec<Choice>, Fail> {
    Base::of(args, None)?.choices(&args.policy)
}

/// For rules that know nothing of a policy but its order.
pub fn orders(args: &SimArgs) -> Result<Vec<Choice>, Fail> {
    const ORDERS: [&str; 5] = ["default", "default-known", "fifo", "srtf", "srsf"];
    if let Some(name) = args.policy.iter().find(|n| !ORDERS.contains(&n.as_str())) {
        let message = format!("--policy {name} does nothing with --format muri");
        let hint = format!("its rules know orders only: {}", ORDERS.join(", "));
        return Err(Fail::usage(message).hint(hint));
    }
    named(args)
}

/// The same on top of what the cluster itself has, with quotas changed.
pub fn choose(args: &SimArgs, own: Option<&Policy>, trace: &Trace) -> Result<Vec<Choice>, Fail> {
    let mut choices = Base::of(args, own)?.choices(&args.policy)?;
    for choice in &mut choices {
        set_quotas(choice, &args.team_quota, trace)?;
        let dated = !choice.policy.reservations.is_empty();
        if dated && trace.epoch.is_none() {
            terminal::warn(&format!(
                "{}: the trace has no dates, so the reservations of the policy are left out",
                choice.name
            ));
            choice.policy.reservations.clear();
        }
    }
    Ok(choices)
}

fn choice(name: &str, base: &Policy) -> Result<Choice, Fail> {
    let with = |order, placement| Policy { order, placement, ..base.clone() };
    let fragments = PlacementRule::Fragments;
    let policy = match name {
        "own" => base.clone(),
        "default" => with(QueueOrder::Fair, fragments),
        "default-known" => with(QueueOrder::FairKnown, fragments),
        "fifo" => with(QueueOrder::Fifo, fragments),
        "srtf" => with(QueueOrder::Srtf, fragments),
        "srsf" => with(QueueOrder::Srsf, fragments),
        "first-fit" => with(QueueOrder::Fair, PlacementRule::FirstFit),
        "best-fit" => with(QueueOrder::Fair, PlacementRule::BestFit),
        _ if Path::new(name).is_file() => file(Path::new(name))?,
        _ => {
            let message = format!("--policy: there is no policy '{name}', nor a file of that name");
            return Err(Fail::usage(message).hint(format!("the policies are {NAMES}")));
        }
    };
    let known = matches!(policy.order, QueueOrder::FairKnown | QueueOrder::Srtf | QueueOrder::Srsf);
    Ok(Choice { name: name.to_owned(), policy, known, trace: None })
}

fn file(path: &Path) -> Result<Policy, Fail> {
    let name = path.display().to_string();
    let text = input::text(path)?;
    Ok(tutti_wire::policyfile::parse(Some(&name), text.as_bytes())?)
}

/// Where there were no teams, anybody could name any. A quota makes teams count, so all that the
/// trace knows are written down, each with the users who named it.
fn set_quotas(choice: &mut Choice, quotas: &[(String, u32)], trace: &Trace) -> Result<(), Fail> {
    if quotas.is_empty() {
        return Ok(());
    }
    let policy = &mut choice.policy;
    if policy.teams.is_empty() {
        let everybody = BTreeSet::from(["*".to_owned()]);
        let rest = Team { members: everybody, ..Team::default() };
        policy.teams.insert(DEFAULT_TEAM.to_owned(), rest);
        for job in &trace.jobs {
            let Some(team) = &job.spec.team else { continue };
            policy.teams.entry(team.clone()).or_default().members.insert(job.user.clone());
        }
        choice.trace = Some(with_teams(trace));
    }
    for (team, gpus) in quotas {
        let teams: Vec<String> = policy.teams.keys().cloned().collect();
        let Some(found) = policy.teams.get_mut(team) else {
            let message = format!("--team-quota: there is no team '{team}'");
            return Err(Fail::usage(message).hint(format!("the teams are {}", teams.join(", "))));
        };
        found.guarantee = GpuQuota { any: *gpus, ..GpuQuota::default() };
    }
    match policy.problems().first() {
        Some(problem) => Err(Fail::usage(format!("--team-quota: {}: {problem}", choice.name))),
        None => Ok(()),
    }
}

/// A job that names no team is in the default one.
fn with_teams(trace: &Trace) -> Trace {
    let mut trace = trace.clone();
    for job in &mut trace.jobs {
        job.spec.team.get_or_insert_with(|| DEFAULT_TEAM.to_owned());
    }
    trace
}
