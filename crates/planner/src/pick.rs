//! Which cluster, for a deadline or a budget.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::near::count;
use crate::search::{best, ideal_seconds};
use crate::words::{duration, thousands};
use crate::{
    Arch, Candidate, Cluster, Goal, Layout, NoPlan, Pins, Question, Run, Stack, Workload,
    candidate, catalogue, run, search,
};

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Aim {
    /// Seconds, failures and checkpoints among them: the cheapest that is done by then.
    Deadline(f64),
    /// Dollars by the list: the fastest that costs no more.
    Budget(f64),
}

/// A cluster that does it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pick {
    pub cluster: Cluster,
    pub plan: Candidate,
    pub run: Run,
}

/// What does it, and how many of the catalogue's machines do not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Picks {
    /// The best first.
    pub picks: Vec<Pick>,
    /// Machines that miss the aim in any size.
    pub missed: u32,
    /// Machines without a list price, where money is what counts.
    pub unpriced: u32,
    /// Machines that it does not run on.
    pub unfit: u32,
}

/// GPUs that somebody might rent.
const MOST_GPUS: u32 = 131_072;
/// Sizes in a row that are no better, after which larger ones are not tried.
const ENOUGH: u32 = 3;
/// A smaller cluster may be so much dearer or slower: there is less of it to go wrong.
const NEAR: f64 = 1.02;

/// Every machine of the catalogue that does it in its best size, the best first. A machine without a list price meets
/// deadlines only, and comes last.
pub fn pick(arch: &Arch, workload: &Workload, aim: Aim, stack: Stack) -> Result<Picks, NoPlan> {
    check(workload, aim)?;
    let ask = Ask { arch, workload, aim, stack };
    let mut known = Known::new();
    let mut found = Picks { picks: Vec::new(), missed: 0, unpriced: 0, unfit: 0 };
    let mut missed: Vec<Pick> = Vec::new();
    let units: Vec<Cluster> = catalogue::machines().flat_map(catalogue::find).collect();
    for unit in &units {
        match size(&ask, &mut known, unit) {
            Some((true, pick)) => found.picks.push(pick),
            Some((false, pick)) if aim.of(&pick.run).is_infinite() => found.unpriced += 1,
            Some((false, pick)) => missed.push(pick),
            None => found.unfit += 1,
        }
    }
    found.missed = missed.len() as u32;
    found.picks.sort_by(|a, b| aim.rank(&a.run).total_cmp(&aim.rank(&b.run)));
    if !found.picks.is_empty() {
        return Ok(found);
    }
    let roomiest = || units.iter().max_by(|a, b| a.gpu.memory_gb.total_cmp(&b.gpu.memory_gb));
    match missed.iter().min_by(|a, b| aim.of(&a.run).total_cmp(&aim.of(&b.run))) {
        Some(closest) => Err(out_of_reach(aim, closest)),
        // It runs nowhere: the sentence is that of where it came closest.
        None => match roomiest().map(|unit| search(&ask.question(unit))) {
            Some(Err(why)) => Err(why),
            _ => Ok(found),
        },
    }
}

impl Aim {
    /// What is held against the bound.
    fn of(self, run: &Run) -> f64 {
        match self {
            Aim::Deadline(_) => run.effective_seconds,
            Aim::Budget(_) => run.price.unwrap_or(f64::INFINITY),
        }
    }

    /// What is as small as can be within the bound.
    fn rank(self, run: &Run) -> f64 {
        match self {
            Aim::Deadline(_) => run.price.unwrap_or(f64::INFINITY),
            Aim::Budget(_) => run.effective_seconds,
        }
    }

    fn bound(self) -> f64 {
        match self {
            Aim::Deadline(bound) | Aim::Budget(bound) => bound,
        }
    }
}

fn check(workload: &Workload, aim: Aim) -> Result<(), NoPlan> {
    let bad = |what, value: String, must| Err(NoPlan::Workload { what, value, must });
    if workload.tokens.is_none() {
        let must = "given where a deadline or a budget is";
        return bad("the number of tokens", "missing".to_owned(), must);
    }
    let (what, most) = match aim {
        Aim::Deadline(_) => ("the deadline", 1e10),
        Aim::Budget(_) => ("the budget", 1e15),
    };
    match aim.bound() {
        b if (1.0..=most).contains(&b) => Ok(()),
        b => bad(what, b.to_string(), "at least 1 and of this world"),
    }
}

/// The best size of one machine that keeps to the bound, or the one that comes closest to it.
fn size(ask: &Ask, known: &mut Known, unit: &Cluster) -> Option<(bool, Pick)> {
    let mut best: Option<(bool, Pick)> = None;
    let mut did: Vec<Pick> = Vec::new();
    // Powers of two and halfway between: batches divide among them.
    let sizes = (0..16).flat_map(|i| [2 << i, 3 << i]);
    let most = MOST_GPUS / unit.gpus();
    let sizes: Vec<u32> = std::iter::once(1).chain(sizes).take_while(|n| *n <= most).collect();
    let mut worse = 0;
    for nodes in sizes.iter().map(|n| n * unit.nodes) {
        let cluster = Cluster { nodes, ..unit.clone() };
        if nodes < most * unit.nodes / 2 && ask.hopeless(&cluster) {
            continue;
        }
        let Some(pick) = ask.plan(known, unit, cluster) else { continue };
        let does = ask.aim.of(&pick.run) <= ask.aim.bound();
        let better = best.as_ref().is_none_or(|(did, than)| match (does, *did) {
            (true, true) => ask.aim.rank(&pick.run) < ask.aim.rank(&than.run),
            (false, false) => ask.aim.of(&pick.run) < ask.aim.of(&than.run),
            (does, _) => does,
        });
        worse = if better { 0 } else { worse + 1 };
        did.extend(does.then(|| pick.clone()));
        if better {
            best = Some((does, pick));
        } else if worse == ENOUGH {
            break;
        }
    }
    let Some((true, best)) = best else { return best };
    let near = ask.aim.rank(&best.run) * NEAR;
    let near = did.into_iter().filter(|p| ask.aim.rank(&p.run) <= near);
    Some((true, near.min_by_key(|p| p.cluster.gpus()).unwrap_or(best)))
}

/// Layouts by kind of GPU, network and nodes: clouds differ in price more often than in hardware.
type Known = BTreeMap<(String, u64, u32), Option<Layout>>;

struct Ask<'a> {
    arch: &'a Arch,
    workload: &'a Workload,
    aim: Aim,
    stack: Stack,
}

impl Ask<'_> {
    /// Too few for the deadline at their peak.
    fn hopeless(&self, cluster: &Cluster) -> bool {
        let question = self.question(cluster);
        let steps = self.workload.tokens.unwrap_or(0.0) / question.tokens();
        matches!(self.aim, Aim::Deadline(bound) if steps * ideal_seconds(&question) > bound)
    }

    fn question<'c>(&'c self, cluster: &'c Cluster) -> Question<'c> {
        let Ask { arch, workload, stack, .. } = *self;
        let pins = Pins::default();
        Question { arch, workload, cluster, pins, goal: Goal::Time, stack, fewer: true }
    }

    fn plan(&self, known: &mut Known, unit: &Cluster, cluster: Cluster) -> Option<Pick> {
        let question = self.question(&cluster);
        let same = (cluster.gpu.name.clone(), cluster.nic_gbps.to_bits(), cluster.nodes);
        let layout = *known.entry(same).or_insert_with(|| best(&question));
        let plan = candidate(&question, &layout?);
        let mut run = run(&question, &plan)?;
        let cluster = rented(&plan, &cluster, unit);
        // What is rented is paid for, used or not.
        let share = f64::from(cluster.gpus()) / f64::from(plan.gpus);
        run.gpu_hours *= share;
        run.price = run.price.map(|p| p * share);
        Some(Pick { plan, run, cluster })
    }
}

/// As many of the machines as the plan uses.
fn rented(plan: &Candidate, cluster: &Cluster, unit: &Cluster) -> Cluster {
    let nodes = plan.gpus.div_ceil(unit.gpus()) * unit.nodes;
    Cluster { nodes, ..cluster.clone() }
}

fn out_of_reach(aim: Aim, closest: &Pick) -> NoPlan {
    let money = |n: f64| format!("{} USD", thousands(n.round() as u64));
    let time = duration(closest.run.effective_seconds);
    let takes = match closest.run.price.map(money) {
        Some(price) => format!("{time} and {price}"),
        None => format!("{time} (and has no list price)"),
    };
    let asked = match aim {
        Aim::Deadline(seconds) => duration(seconds),
        Aim::Budget(sum) => money(sum),
    };
    let nodes = count(u64::from(closest.cluster.nodes), "node");
    NoPlan::OutOfReach { name: format!("{nodes} of {}", closest.cluster.name), takes, asked }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::work;
    use crate::{Task, names};

    const DAY: f64 = 86_400.0;

    fn ask(model: &str, tokens: f64, aim: Aim) -> Result<Picks, NoPlan> {
        let arch = names::find(model).unwrap();
        let workload = Workload { tokens: Some(tokens), ..work(Task::Pretrain, 4096, 1024) };
        pick(&arch, &workload, aim, Stack::Current)
    }

    #[test]
    fn a_deadline_is_met_and_the_cheapest_comes_first() {
        let picks = ask("llama-3.1-8b", 1e12, Aim::Deadline(30.0 * DAY)).unwrap().picks;
        assert!(picks.iter().all(|p| p.run.effective_seconds <= 30.0 * DAY));
        let prices: Vec<f64> = picks.iter().filter_map(|p| p.run.price).collect();
        assert!(prices.len() > 5 && prices.is_sorted());
    }

    /// Every size that is done in time, of one machine.
    #[test]
    fn of_sizes_that_cost_about_the_same_the_smallest_is_rented() {
        let arch = names::find("llama-3.1-8b").unwrap();
        let workload = Workload { tokens: Some(1e11), ..work(Task::Pretrain, 4096, 1024) };
        for aim in [Aim::Deadline(300.0 * DAY), Aim::Budget(1e6)] {
            let ask = Ask { arch: &arch, workload: &workload, aim, stack: Stack::Current };
            let unit = catalogue::find("dgx-h100").unwrap();
            let (_, chosen) = size(&ask, &mut Known::new(), &unit).unwrap();
            for nodes in (0..11).map(|i| 1 << i) {
                let cluster = Cluster { nodes, ..unit.clone() };
                let Some(other) = ask.plan(&mut Known::new(), &unit, cluster) else { continue };
                let near = aim.rank(&other.run) * NEAR < aim.rank(&chosen.run);
                let does = aim.of(&other.run) <= aim.bound();
                assert!(!(does && near), "{aim:?}: {nodes} nodes");
                let smaller = other.cluster.nodes < chosen.cluster.nodes;
                let as_good = aim.rank(&other.run) <= aim.rank(&chosen.run);
                assert!(!(does && smaller && as_good), "{aim:?}: {nodes} nodes");
            }
        }
    }

    #[test]
    fn what_runs_on_no_machine_is_told_by_the_roomiest() {
        let arch = names::find("llama-3.1-8b").unwrap();
        let workload = Workload { tokens: Some(1e9), ..work(Task::Pretrain, 99_999_999, 1) };
        let found = pick(&arch, &workload, Aim::Deadline(1e9), Stack::Current).map(|_| ());
        assert!(found.unwrap_err().to_string().starts_with("does not fit: "));
    }

    #[test]
    fn half_the_time_takes_more_nodes() {
        let at = |days: f64| {
            let picks = ask("llama-3.1-8b", 1e12, Aim::Deadline(days * DAY)).unwrap().picks;
            picks.into_iter().find(|p| p.cluster.name == "dgx-h100").unwrap().cluster.nodes
        };
        assert!(at(15.0) > at(40.0));
    }

    #[test]
    fn a_budget_is_kept_and_the_fastest_comes_first() {
        let found = ask("llama-3.1-8b", 1e11, Aim::Budget(50_000.0)).unwrap();
        let unpriced = catalogue::machines().filter(|m| catalogue::list_price(m).is_none());
        assert_eq!(found.unpriced as usize, unpriced.count());
        let counted = found.missed + found.unpriced + found.unfit;
        assert_eq!(counted as usize + found.picks.len(), catalogue::machines().count());
        let picks = found.picks;
        for p in &picks {
            let rented = p.run.effective_seconds / 3600.0 * f64::from(p.cluster.gpus());
            let price = rented * p.cluster.price_per_gpu_hour.unwrap();
            assert!(price <= 50_000.0 && (price / p.run.price.unwrap() - 1.0).abs() < 1e-9);
        }
        assert!(picks.is_sorted_by_key(|p| p.run.effective_seconds));
    }

    #[test]
    fn what_nobody_can_is_one_sentence() {
        let e = ask("llama-3.1-405b", 15e12, Aim::Deadline(DAY)).unwrap_err().to_string();
        assert!(e.starts_with("no cluster of the catalogue does it: the best, "), "{e}");
        assert!(e.contains(" days ") && e.ends_with(" where 24.0 h were given"), "{e}");
        let e = ask("llama-3.1-8b", 1e12, Aim::Budget(5.0)).unwrap_err().to_string();
        assert!(e.contains(" and ") && e.ends_with(" USD where 5 USD were given"), "{e}");
        for aim in [Aim::Deadline(f64::NAN), Aim::Budget(-1.0), Aim::Deadline(0.0)] {
            assert!(
                ask("llama-3.1-8b", 1e12, aim)
                    .unwrap_err()
                    .to_string()
                    .contains("must be at least 1")
            );
        }
    }
}
