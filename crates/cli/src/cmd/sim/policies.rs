//! Policies by name, and what a what-if changes in them.

use std::collections::BTreeSet;
use std::path::Path;

use tutti_model::{DEFAULT_TEAM, GpuQuota, PlacementRule, Policy, QueueOrder, Team};
use tutti_sim::trace::Trace;

use super::SimArgs;
use super::input;
use crate::fail::Fail;

pub const NAMES: &str = "default, default-known, fifo, srtf, srsf, first-fit, best-fit";

pub struct Choice {
    pub name: String,
    pub policy: Policy,
    /// The scheduler knows how long jobs run.
    pub known: bool,
}

/// The policies of `--policy` on top of `--policy-file`, or of the defaults.
pub fn named(args: &SimArgs) -> Result<Vec<Choice>, Fail> {
    let base = match &args.policy_file {
        Some(path) => file(path)?,
        None => Policy::default(),
    };
    args.policy.iter().map(|name| choice(name, &base)).collect()
}

/// The same on top of what the cluster itself has, with quotas changed.
pub fn choose(args: &SimArgs, own: &Policy, trace: &Trace) -> Result<Vec<Choice>, Fail> {
    let mut base = match &args.policy_file {
        Some(path) => file(path)?,
        None => own.clone(),
    };
    set_quotas(&mut base, &args.team_quota, trace);
    let problems = base.problems();
    if let Some(problem) = problems.first() {
        return Err(Fail::usage(format!("--team-quota: {problem}")));
    }
    args.policy.iter().map(|name| choice(name, &base)).collect()
}

fn choice(name: &str, base: &Policy) -> Result<Choice, Fail> {
    let with = |order, placement| Policy { order, placement, ..base.clone() };
    let fragments = PlacementRule::Fragments;
    let (policy, known) = match name {
        "default" => (with(QueueOrder::Fair, fragments), false),
        "default-known" => (with(QueueOrder::FairKnown, fragments), true),
        "fifo" => (with(QueueOrder::Fifo, fragments), false),
        "srtf" => (with(QueueOrder::Srtf, fragments), true),
        "srsf" => (with(QueueOrder::Srsf, fragments), true),
        "first-fit" => (with(QueueOrder::Fair, PlacementRule::FirstFit), false),
        "best-fit" => (with(QueueOrder::Fair, PlacementRule::BestFit), false),
        _ if Path::new(name).is_file() => {
            let policy = file(Path::new(name))?;
            let known =
                matches!(policy.order, QueueOrder::FairKnown | QueueOrder::Srtf | QueueOrder::Srsf);
            (policy, known)
        }
        _ => {
            let message = format!("--policy: there is no policy '{name}', nor a file of that name");
            return Err(Fail::usage(message).hint(format!("the policies are {NAMES}")));
        }
    };
    Ok(Choice { name: name.to_owned(), policy, known })
}

fn file(path: &Path) -> Result<Policy, Fail> {
    let name = path.display().to_string();
    let text = input::text(path)?;
    tutti_wire::policyfile::parse(Some(&name), text.as_bytes()).map_err(|e| {
        let fail = Fail::usage(e.to_string());
        match e.hint() {
            Some(hint) => fail.hint(hint),
            None => fail,
        }
    })
}

/// Where there were no teams, anybody could name any. A quota makes teams count, so all that the
/// trace knows are written down, each with the users who named it.
fn set_quotas(policy: &mut Policy, quotas: &[(String, u32)], trace: &Trace) {
    if quotas.is_empty() {
        return;
    }
    if policy.teams.is_empty() {
        let everybody = BTreeSet::from(["*".to_owned()]);
        let rest = Team { members: everybody, ..Team::default() };
        policy.teams.insert(DEFAULT_TEAM.to_owned(), rest);
        for job in &trace.jobs {
            let Some(team) = &job.spec.team else { continue };
            policy.teams.entry(team.clone()).or_default().members.insert(job.user.clone());
        }
    }
    for (team, gpus) in quotas {
        let guarantee = GpuQuota { any: *gpus, ..GpuQuota::default() };
        policy.teams.entry(team.clone()).or_default().guarantee = guarantee;
    }
}
