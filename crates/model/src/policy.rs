//! How the operator wants the cluster shared: teams, classes, reservations, topology and the
//! scheduler's knobs. Part of the state, changed by one event, so that a replay plans as the
//! cluster did. Reading it from a file is `wire::policyfile`.

mod check;
mod limits;
mod prices;
mod promise;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use limits::*;
pub use prices::*;
pub use promise::{GpusBuilt, gpus_built};

use crate::{
    Budget, Bytes, Gpu, Node, NodeFacts, PartPlacement, Span, Time, Topology, WatchPolicy,
};

/// The team of jobs that name none and whose user is in none.
pub const DEFAULT_TEAM: &str = "default";
/// The class of endpoints that name none, where the policy has it: requests wait for an answer now,
/// so replicas go before standard work and may preempt it, within their team's limit.
pub const SERVING_CLASS: &str = "serving";
/// The class of jobs that name none.
pub const DEFAULT_CLASS: &str = "standard";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Policy {
    pub order: QueueOrder,
    pub placement: PlacementRule,
    /// After waiting this long, the head of the queue keeps the nodes it waits for, even if nobody
    /// knows when they become free: large gangs do not starve behind small jobs.
    #[schema(value_type = String)]
    pub patience: Span,
    /// After waiting this long, a task goes before everything else of its class.
    #[schema(value_type = String)]
    pub starve_after: Span,
    /// At most this many placements in one pass; the rest follows in the next.
    pub placements_max: usize,
    /// How many blocked jobs hold a start-time reservation that backfill must not delay.
    pub reserved_heads: usize,
    /// How many waiting tasks of one lane are tried for backfill in a pass.
    pub backfill_depth: usize,
    /// Past usage counts half after this long.
    #[schema(value_type = String)]
    pub half_life: Span,
    /// What a GPU-second of a model counts, in thousandths; 1000 if not listed.
    pub gpu_weights: BTreeMap<String, u32>,
    /// What jobs get that name no time limit, unless their team or class has a default of its own.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_time: Option<Span>,
    pub classes: BTreeMap<String, Class>,
    /// By name. Empty: anybody may name any team, and all count alike.
    pub teams: BTreeMap<String, Team>,
    pub preemption: PreemptionRule,
    pub durations: DurationRule,
    /// A running elastic job is not resized again within this time, unless others need its nodes.
    #[schema(value_type = String)]
    pub resize_every: Span,
    pub reservations: Vec<Reservation>,
    pub topology: TopologyMap,
    pub spares: Vec<Spare>,
    /// What GPUs cost, for reports.
    #[serde(skip_serializing_if = "Prices::is_unset")]
    pub prices: Prices,
    #[serde(skip_serializing_if = "GoodputRule::is_unset")]
    pub goodput: GoodputRule,
    #[serde(skip_serializing_if = "WatchPolicy::is_default")]
    pub watch: WatchPolicy,
    #[serde(skip_serializing_if = "SubmissionRule::is_default")]
    pub submissions: SubmissionRule,
}

impl Default for Policy {
    fn default() -> Self {
        let class = |rank, admins_only| Class { rank, admins_only, default_time: None };
        let classes = [
            ("scavenger", class(-100, false)),
            (DEFAULT_CLASS, class(0, false)),
            (SERVING_CLASS, class(50, false)),
            ("urgent", class(100, true)),
        ];
        Policy {
            order: QueueOrder::Fair,
            placement: PlacementRule::Fragments,
            patience: Span::secs(300),
            starve_after: Span::secs(7 * 86_400),
            placements_max: 4096,
            reserved_heads: 1,
            backfill_depth: 200,
            half_life: Span::secs(7 * 86_400),
            gpu_weights: BTreeMap::new(),
            default_time: None,
            classes: classes.map(|(name, class)| (name.to_owned(), class)).into(),
            teams: BTreeMap::new(),
            preemption: PreemptionRule::default(),
            durations: DurationRule::default(),
            resize_every: Span::secs(600),
            reservations: Vec::new(),
            topology: TopologyMap::default(),
            spares: Vec::new(),
            prices: Prices::default(),
            goodput: GoodputRule::default(),
            watch: WatchPolicy::default(),
            submissions: SubmissionRule::default(),
        }
    }
}

/// When a GPU that somebody holds counts as idle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GoodputRule {
    /// Below so many per cent of activity
    pub idle_below: u32,
    /// for so long.
    #[schema(value_type = String)]
    pub idle_after: Span,
}

impl Default for GoodputRule {
    fn default() -> Self {
        GoodputRule { idle_below: 3, idle_after: Span::secs(300) }
    }
}

impl GoodputRule {
    fn is_unset(&self) -> bool {
        *self == GoodputRule::default()
    }
}

/// How much of the controller's memory and journal job files may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SubmissionRule {
    /// Command and environment of one job.
    #[schema(value_type = String)]
    pub job_bytes: Bytes,
    /// All jobs of one user that are not over, and endpoints. What is the same counts once.
    #[schema(value_type = String)]
    pub user_bytes: Bytes,
    /// The same of one team.
    #[schema(value_type = String)]
    pub team_bytes: Bytes,
}

impl SubmissionRule {
    /// No request may have more than this, so more can't be allowed.
    pub const JOB_BYTES_MAX: Bytes = Bytes(1 << 20);

    fn is_default(&self) -> bool {
        *self == SubmissionRule::default()
    }
}

impl Default for SubmissionRule {
    fn default() -> Self {
        SubmissionRule {
            job_bytes: Bytes(256 << 10),
            user_bytes: Bytes(64 << 20),
            team_bytes: Bytes(256 << 20),
        }
    }
}

/// Who goes first among the jobs of one user and priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueueOrder {
    /// Teams, users and jobs that have had least go first; durations need not be known.
    #[default]
    Fair,
    /// As `Fair`, but among jobs the shortest remaining service goes first, by their time limits.
    FairKnown,
    /// As submitted.
    Fifo,
    /// Shortest remaining time first, by time limits.
    Srtf,
    /// Shortest remaining time × GPUs first, by time limits.
    Srsf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlacementRule {
    /// The spot that leaves most of the expected work placeable.
    #[default]
    Fragments,
    /// The fullest node that fits.
    BestFit,
    /// The first node that fits.
    FirstFit,
}

/// A cluster-wide class of work. A higher rank goes before every lower one, whatever the team.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Class {
    pub rank: i32,
    pub admins_only: bool,
    /// What its jobs get that name no time limit.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_time: Option<Span>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Team {
    pub parent: Option<String>,
    /// Always theirs. Lent while idle, and taken back on demand.
    pub guarantee: GpuQuota,
    /// Never more than this, however idle the cluster is.
    pub limit: Option<GpuQuota>,
    /// Their part of what is free, against their siblings'; in thousandths.
    pub weight: u32,
    /// Users who may submit for it, and whose jobs go here when they name no team. `*` is everybody.
    pub members: BTreeSet<String>,
    /// What it and all below it may use up before somebody is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// What jobs of it and of teams below it get that name no time limit.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_time: Option<Span>,
}

impl Default for Team {
    fn default() -> Self {
        Team {
            parent: None,
            guarantee: GpuQuota::default(),
            limit: None,
            weight: 1000,
            members: BTreeSet::new(),
            budget: None,
            default_time: None,
        }
    }
}

/// A number of GPUs: of any model, and of certain models on top.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GpuQuota {
    pub any: u32,
    pub models: BTreeMap<String, u32>,
}

impl GpuQuota {
    pub fn is_none(&self) -> bool {
        self.any == 0 && self.models.values().all(|&n| n == 0)
    }
    pub fn total(&self) -> u64 {
        u64::from(self.any) + self.models.values().map(|&n| u64::from(n)).sum::<u64>()
    }
}

/// `8 GPUs + 4 h100`.
impl fmt::Display for GpuQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::count(self.any.into(), "GPU"))?;
        self.models.iter().try_for_each(|(model, n)| write!(f, " + {n} {model}"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PreemptionRule {
    pub enabled: bool,
    /// A task that was preempted is left alone for this long after it has started again.
    #[schema(value_type = String)]
    pub not_again_within: Span,
    /// A set of more victims than this is no solution.
    pub victims_max: usize,
    /// How much of a victim's GPU state leaves a node's GPUs in a second when it is suspended, and
    /// how much comes back: what a suspension costs.
    #[schema(value_type = String)]
    pub suspend_out: Bytes,
    #[schema(value_type = String)]
    pub suspend_in: Bytes,
}

impl PreemptionRule {
    /// How long moving this much out of GPUs and back takes.
    pub fn out_and_in(&self, bytes: Bytes) -> Span {
        let ms = |rate: Bytes| bytes.0.saturating_mul(1000) / rate.0.max(1);
        Span(ms(self.suspend_out).saturating_add(ms(self.suspend_in)))
    }
}

impl Default for PreemptionRule {
    fn default() -> Self {
        PreemptionRule {
            enabled: true,
            not_again_within: Span::secs(1800),
            victims_max: 64,
            suspend_out: Bytes(3 << 29),
            suspend_in: Bytes(4 << 30),
        }
    }
}

/// What the scheduler may assume of jobs without a time limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct DurationRule {
    /// Predict from earlier runs of the same user's jobs of the same name and size.
    pub learn: bool,
    /// Added to what was learned, in per cent.
    pub margin_percent: u32,
    /// Without a limit or a lesson: a job is not started on a node that is reserved within this time.
    #[schema(value_type = String)]
    pub assumed: Span,
}

impl Default for DurationRule {
    fn default() -> Self {
        DurationRule { learn: false, margin_percent: 50, assumed: Span::secs(86_400) }
    }
}

/// Nodes kept for a team, or from everybody (maintenance), for a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reservation {
    pub name: String,
    /// Node names.
    pub nodes: BTreeSet<String>,
    pub from: Time,
    pub until: Time,
    /// None: maintenance; nothing new runs into it.
    #[serde(default)]
    pub team: Option<String>,
}

/// Where nodes stand in the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TopologyMap {
    /// By node name. A node that is not listed is placed by its labels.
    pub nodes: BTreeMap<String, Place>,
    /// Labels that say where a node stands.
    pub rack_label: String,
    pub rail_label: String,
    pub site_label: String,
}

impl Default for TopologyMap {
    fn default() -> Self {
        TopologyMap {
            nodes: BTreeMap::new(),
            rack_label: "rack".to_owned(),
            rail_label: "rail".to_owned(),
            site_label: "site".to_owned(),
        }
    }
}

impl TopologyMap {
    pub fn place_of(&self, node: &Node) -> Place {
        self.place(&node.facts)
    }

    /// The same for a node that has not joined.
    pub fn place(&self, node: &NodeFacts) -> Place {
        if let Some(place) = self.nodes.get(&node.name) {
            return place.clone();
        }
        let label = |key: &String| node.labels.get(key).cloned();
        Place {
            rack: label(&self.rack_label),
            rail: label(&self.rail_label),
            site: label(&self.site_label),
        }
    }
}

/// A path in the tree of domains. A level that is not given is the same for all.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(default)]
pub struct Place {
    pub site: Option<String>,
    pub rail: Option<String>,
    pub rack: Option<String>,
}

/// So many nodes of every domain of this level stay free for gangs that lost a node there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Spare {
    pub per: Topology,
    pub nodes: u32,
}

impl Policy {
    pub fn class_rank(&self, class: &str) -> i32 {
        self.classes.get(class).map_or(0, |c| c.rank)
    }

    /// What a part is charged: thousandths of a GPU of weight 1000. A part that takes most of a
    /// node's CPUs or memory blocks as much of its GPUs, and pays for them.
    pub fn charge(&self, node: &NodeFacts, part: &PartPlacement, exclusive: bool) -> u64 {
        let all = node.gpus.len() as u64 * 1000;
        let held = part.gpus.len() as u64 * u64::from(part.share.0);
        let blocked = |used: u64, of: u64| match of {
            0 => 0,
            of => (u128::from(all) * u128::from(used.min(of)) / u128::from(of)) as u64,
        };
        let milli = if exclusive {
            all
        } else {
            let by_cpus = blocked(part.cpus.into(), node.cpus.into());
            held.max(by_cpus).max(blocked(part.mem.0, node.mem.0))
        };
        let of_part = |g: &&Gpu| part.gpus.is_empty() || part.gpus.contains(&g.index);
        let weight = node.gpus.iter().filter(of_part).map(|g| self.gpu_weight(&g.model)).max();
        milli * weight.unwrap_or(1000) / 1000
    }

    pub fn gpu_weight(&self, model: &str) -> u64 {
        self.gpu_weights.get(model).copied().unwrap_or(1000).into()
    }

    /// The team and all above it, the team first. A broken tree ends the walk.
    pub fn line_of<'p>(&'p self, team: &'p str) -> Vec<&'p str> {
        let mut line = vec![team];
        while let Some(parent) =
            self.teams.get(line[line.len() - 1]).and_then(|t| t.parent.as_deref())
            && !line.contains(&parent)
        {
            line.push(parent);
        }
        line
    }

    /// Where a job of this user goes that names no team: the first team that lists the user, else
    /// the first that is for everybody, else [`DEFAULT_TEAM`].
    pub fn team_of_user(&self, user: &str) -> &str {
        let member = |who: &str| {
            self.teams.iter().find(|(_, t)| t.members.contains(who)).map(|(name, _)| name.as_str())
        };
        member(user).or_else(|| member("*")).unwrap_or(DEFAULT_TEAM)
    }

    pub fn is_member(&self, team: &str, user: &str) -> bool {
        self.line_of(team)
            .iter()
            .filter_map(|t| self.teams.get(*t))
            .any(|t| t.members.contains(user) || t.members.contains("*"))
    }
}

/// What is wrong with a policy, and where: `path` is the key, such as `teams.vision.parent`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct BadPolicy {
    pub path: String,
    pub problem: String,
}
