//! A day of work on a cluster of any size: several teams, long trainings over many nodes, servers of
//! models, arrays, and many short trials, most of them in working hours; and what goes wrong on such a
//! day. Made from a seed, from nothing else.
//!
//! Sizes, run times and how many jobs fail are of the order that is published of such clusters: half
//! of all jobs ask for one GPU and take minutes, a few take most of the GPUs, and about one in four
//! does not end well.

mod people;
mod trouble;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tutti_model::{
    Bytes, Checkpoint, GpuQuota, GpuRequest, JobSpec, Launcher, NodeFacts, Policy, Preempt,
    PreemptMode, Price, Span, Team, Time,
};

use crate::cluster::Cluster;
use crate::replay::Incident;
use crate::trace::{Manner, Trace, TraceJob};
use people::{TEAMS, Work};

/// Midnight of the day that is made: a Tuesday.
pub const MIDNIGHT: Time = Time(1_772_496_000_000);

const HOUR: u64 = 3600;
/// The cluster that the numbers below are meant for.
const USUAL_GPUS: f64 = 1024.0;

/// Jobs, how the cluster is shared, and what happens on the way.
#[derive(Clone, Debug)]
pub struct Day {
    pub trace: Trace,
    pub policy: Policy,
    pub incidents: Vec<Incident>,
}

/// `days` of them one after the other.
pub fn days(cluster: &Cluster, days: u32, seed: u64) -> Day {
    let mut maker = Maker {
        rng: ChaCha8Rng::seed_from_u64(seed),
        size: cluster.gpus() as f64 / USUAL_GPUS,
        per_node: cluster.nodes.iter().map(|n| n.gpus.len() as u32).min().unwrap_or(8).max(1),
        gpus: cluster.gpus() as u32,
        cpus: least(cluster, |node| u64::from(node.cpus)) as u32,
        mem: Bytes(least(cluster, |node| node.mem.0)),
        jobs: Vec::new(),
    };
    maker.standing();
    (0..days.max(1)).for_each(|day| maker.day(u64::from(day) * 24 * HOUR));
    let mut jobs = maker.jobs;
    jobs.sort_by_key(|job| job.submit);
    let incidents = trouble::of(&mut maker.rng, cluster, &jobs, days.max(1));
    let trace = Trace { jobs, skipped: 0, epoch: Some(MIDNIGHT) };
    Day { trace, policy: policy(cluster.gpus() as u32), incidents }
}

/// Three quarters of what the poorest node has of it for each of its GPUs.
fn least(cluster: &Cluster, of: impl Fn(&NodeFacts) -> u64) -> u64 {
    let each = |node: &NodeFacts| of(node) * 3 / 4 / node.gpus.len().max(1) as u64;
    cluster.nodes.iter().map(each).min().unwrap_or(0)
}

/// Each team is guaranteed its part; the rest is lent to whoever needs it.
fn policy(gpus: u32) -> Policy {
    let team = |percent: u32, members: &[&str]| Team {
        guarantee: GpuQuota { any: gpus * percent / 100, ..GpuQuota::default() },
        weight: percent * 20,
        members: members.iter().map(|m| (*m).to_owned()).collect(),
        ..Team::default()
    };
    let teams = TEAMS.iter().map(|t| (t.name.to_owned(), team(t.percent, t.members)));
    let mut policy = Policy { teams: teams.collect(), ..Policy::default() };
    for (model, shape) in [("h100", "aws p5.48xlarge"), ("h200", "aws p5en.48xlarge")] {
        policy.prices.gpus.extend(Price::of_shape(shape).map(|price| (model.to_owned(), price)));
    }
    policy.durations.learn = true;
    policy.durations.assumed = Span::secs(4 * HOUR);
    policy
}

struct Maker {
    rng: ChaCha8Rng,
    /// Of the usual cluster.
    size: f64,
    per_node: u32,
    gpus: u32,
    /// What jobs ask for with each GPU.
    cpus: u32,
    mem: Bytes,
    jobs: Vec<TraceJob>,
}

impl Maker {
    /// What runs through the night, from the first minutes on.
    fn standing(&mut self) {
        let much = self.gpus / self.per_node;
        let (most, half, some) = (much * 5 / 16, much / 8, much / 16);
        self.training("foundation", "llm-70b-pretrain", most, 60, 40 * HOUR, 8_200);
        self.training("foundation", "moe-8x7b-pretrain", half, 160, 26 * HOUR, 5_400);
        self.training("vision", "dino-giant", some, 300, 17 * HOUR, 2_100);
        self.training("biology", "fold-trunk", some, 420, 20 * HOUR, 3_700);
        for n in 0..self.about(5.0) {
            let name = ["serve-chat", "serve-embed", "serve-code", "serve-speech"][n as usize % 4];
            let mut job = self.gang("platform", name, 1, 30 + 40 * n, 72 * HOUR);
            job.spec.preempt = Some(Preempt { mode: PreemptMode::Never });
            job.spec.time = None;
            self.jobs.push(job);
        }
    }

    fn day(&mut self, from: u64) {
        for _ in 0..self.about(3.0) {
            let (at, hours) = (from + self.at_work(), self.between(5, 11));
            let nodes = self.whole_nodes(128);
            self.large(at, nodes, hours * HOUR);
        }
        for _ in 0..self.about(10.0) {
            let (at, hours) = (from + self.at_work(), self.between(2, 8));
            let nodes = self.whole_nodes(64);
            self.large(at, nodes, hours * HOUR);
        }
        for _ in 0..self.about(85.0) {
            let at = from + self.at_work();
            self.tuning(at);
        }
        for _ in 0..self.about(330.0) {
            let at = from + self.any_time();
            self.trial(at);
        }
        for _ in 0..self.about(60.0) {
            let at = from + self.at_work();
            self.notebook(at);
        }
        for _ in 0..self.about(11.0) {
            let at = from + self.any_time();
            self.sweep(at);
        }
    }

    /// So many on the usual cluster, as many for its size on this one, and at least one.
    fn about(&self, usual: f64) -> u64 {
        (usual * self.size).round().max(1.0) as u64
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        self.rng.random_range(least..=most)
    }

    /// Most between ten and five.
    fn at_work(&mut self) -> u64 {
        let (a, b) = (self.between(0, 5 * HOUR), self.between(0, 5 * HOUR));
        8 * HOUR + a + b
    }

    /// Two of three while people work.
    fn any_time(&mut self) -> u64 {
        if self.rng.random_range(0..3) == 0 { self.between(0, 24 * HOUR) } else { self.at_work() }
    }

    /// Around a median of minutes, with a long tail.
    fn minutes(&mut self, median: f64, tail: f64) -> u64 {
        let normal: f64 = (0..6).map(|_| self.rng.random::<f64>()).sum::<f64>() - 3.0;
        (median * 60.0 * (normal * tail).exp()).clamp(20.0, 30.0 * HOUR as f64) as u64
    }

    fn whole_nodes(&self, gpus: u32) -> u32 {
        (gpus / self.per_node).clamp(1, (self.gpus / self.per_node / 4).max(1))
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.random_range(0..of.len())]
    }

    fn job(&mut self, team: &str, name: &str, spec: JobSpec, at: u64, run: u64) -> TraceJob {
        let members = TEAMS.iter().find(|t| t.name == team).map_or(&["guest"][..], |t| t.members);
        let user = self.pick(members).to_owned();
        let (cpus, mem) = (Some(self.cpus.max(1)), Some(self.mem));
        let whole = spec.gpu_share.is_none();
        let spec = JobSpec {
            name: Some(name.to_owned()),
            team: Some(team.to_owned()),
            cpus_per_gpu: cpus.filter(|_| whole),
            mem_per_gpu: mem.filter(|_| whole),
            ..spec
        };
        let (submit, run) = (Time(at * 1000), Span::secs(run));
        TraceJob { name: name.to_owned(), submit, run, user, spec, manner: Manner::default() }
    }

    /// All GPUs of so many nodes, for a time that its owner knows roughly.
    fn gang(&mut self, team: &str, name: &str, nodes: u32, at: u64, run: u64) -> TraceJob {
        let mut spec = JobSpec::shell(format!("python train.py --config {name}.yaml"));
        spec.nodes = Some(nodes);
        spec.gpus_per_node = Some(GpuRequest { model: None, count: self.per_node });
        spec.launcher = Launcher::Torch;
        spec.time = Some(Span::secs(run * 5 / 4 / 1800 * 1800 + 1800));
        self.job(team, name, spec, at, run)
    }

    fn training(&mut self, team: &str, name: &str, nodes: u32, at: u64, run: u64, step_ms: u64) {
        let mut job = self.gang(team, name, nodes.max(1), at, run);
        let dir = format!("/shared/ckpt/{name}");
        job.spec.checkpoint = Some(Checkpoint { dir, signal: None, grace: None });
        job.manner.step = Some(Span(step_ms));
        self.jobs.push(job);
    }

    fn large(&mut self, at: u64, nodes: u32, run: u64) {
        let team = self.pick(&["foundation", "vision", "biology", "speech", "robotics"]);
        let name = people::name(&mut self.rng, team, Work::Training);
        let step_ms = self.between(900, 6_000);
        self.training(team, &name, nodes, at, run, step_ms);
    }

    /// One to four nodes for some hours; one in eight is borrowed work that gives way.
    fn tuning(&mut self, at: u64) {
        let team = people::team(&mut self.rng);
        let name = people::name(&mut self.rng, team, Work::Tuning);
        let nodes = self.pick(&[1, 1, 1, 2, 2, 4]);
        let run = self.minutes(75.0, 0.9);
        let mut job = self.gang(team, &name, nodes, at, run);
        job.manner.step = Some(Span(self.between(300, 1_800)));
        if self.rng.random_range(0..8) == 0 {
            job.spec.class = Some("scavenger".to_owned());
        }
        self.may_fail(&mut job, 5);
        self.jobs.push(job);
    }

    fn trial(&mut self, at: u64) {
        let team = people::team(&mut self.rng);
        let name = people::name(&mut self.rng, team, Work::Trial);
        let gpus = self.pick(&[1, 1, 1, 1, 2, 2, 4]).min(self.per_node);
        let run = self.minutes(7.0, 1.5);
        let mut spec = JobSpec::shell(format!("python {name}.py"));
        spec.gpus_per_node = Some(GpuRequest { model: None, count: gpus });
        spec.time = Some(Span::secs(run * 2 / 900 * 900 + 1800));
        let mut job = self.job(team, &name, spec, at, run);
        self.may_fail(&mut job, 3);
        self.jobs.push(job);
    }

    /// One in `of` breaks, soon after its start.
    fn may_fail(&mut self, job: &mut TraceJob, of: u32) {
        if self.rng.random_range(0..of) == 0 {
            job.manner.exit = self.pick(&[1, 1, 1, 134, 137]);
            job.run = Span(job.run.0 / self.between(2, 12));
        }
    }

    /// Somebody tries things by hand, and mostly thinks.
    fn notebook(&mut self, at: u64) {
        let team = people::team(&mut self.rng);
        let mut spec = JobSpec::shell("jupyter lab");
        if self.rng.random_range(0..3) == 0 {
            spec.gpu_share = Some(0.5);
        } else {
            spec.gpus_per_node = Some(GpuRequest { model: None, count: 1 });
        }
        let run = self.between(HOUR / 2, 4 * HOUR);
        let job = self.job(team, "notebook", spec, at, run);
        self.jobs.push(job);
    }

    fn sweep(&mut self, at: u64) {
        let (team, name) = self.pick(&[
            ("biology", "dock-screen"),
            ("vision", "augment-sweep"),
            ("speech", "lr-sweep"),
            ("robotics", "sim-rollouts"),
            ("platform", "eval-suite"),
        ]);
        let (last, most) = (self.between(23, 119), self.between(16, 48));
        let run = self.minutes(18.0, 0.6);
        let mut spec = JobSpec::shell(format!("python {name}.py --shard $TUTTI_ARRAY_INDEX"));
        spec.gpus_per_node = Some(GpuRequest { model: None, count: 1 });
        spec.array = format!("0-{last}%{most}").parse().ok();
        spec.time = Some(Span::secs(2 * HOUR));
        if name == "dock-screen" {
            spec.class = Some("scavenger".to_owned());
        }
        let job = self.job(team, name, spec, at, run);
        self.jobs.push(job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{self, Fate, Options, Restart};
    use crate::shape::parse_lots;

    fn cluster(lots: &str) -> Cluster {
        Cluster { nodes: parse_lots(lots, "").unwrap() }
    }

    #[test]
    fn the_same_seed_makes_the_same_day() {
        let made = |seed| days(&cluster("16xdgx-h100"), 1, seed).trace;
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
    }

    #[test]
    fn a_day_scales_with_the_cluster_and_grows_with_days() {
        let jobs = |lots: &str, n| days(&cluster(lots), n, 1).trace.jobs.len();
        let (small, large) = (jobs("16xdgx-h100", 1), jobs("128xdgx-h100", 1));
        assert!((400..700).contains(&large), "{large}");
        assert!(small * 6 < large && small * 10 > large, "{small} of {large}");
        assert!(jobs("16xdgx-h100", 3) > 2 * small);
    }

    /// Every job fits, most end well, some fail, and what happens on the way brings restarts.
    #[test]
    fn a_day_runs_through() {
        let cluster = cluster("16xdgx-h100");
        let Day { trace, policy, incidents } = days(&cluster, 1, 1);
        let options = Options {
            policy,
            incidents,
            restart: Restart::Checkpoint(Span::secs(1200)),
            heartbeat: Some(Span::secs(120)),
            ..Options::default()
        };
        let run = replay::run(&cluster, &trace, &options, &mut |_| {}).unwrap();
        let count = |fate: fn(&Fate) -> bool| run.jobs.iter().filter(|j| fate(&j.fate)).count();
        assert_eq!(count(|f| matches!(f, Fate::Refused(_) | Fate::Stuck)), 0);
        let (failed, all) = (count(|f| *f == Fate::Failed), run.jobs.len());
        assert!(failed * 2 < all && failed * 40 > all, "{failed} of {all}");
        assert!(run.failures > 0 && run.jobs.iter().any(|j| j.node_failures > 0));
    }
}
