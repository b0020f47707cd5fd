//! The policy as the file has it: weights as factors, racks as lists of nodes, times as dates.
//! Read and written by the same derives, so that both directions agree.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tutti_model::{
    BadPolicy, Budget, Class, DEFAULT_CLASS, DurationRule, GoodputRule, Place, PlacementRule,
    Policy, PreemptionRule, Price, Prices, QueueOrder, Reservation, Span, Spare, SubmissionRule,
    Team, TopologyMap, WatchPolicy,
};

use super::hosts;
use super::values::{Factor, Hosts, Moment, Money, Quota};

type Checked<T> = Result<T, Vec<BadPolicy>>;

fn bad(path: String, problem: impl Into<String>) -> BadPolicy {
    BadPolicy { path, problem: problem.into() }
}

#[derive(Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PolicyShape {
    order: QueueOrder,
    placement: PlacementRule,
    patience: Span,
    starve_after: Span,
    placements_max: usize,
    reserved_heads: usize,
    backfill_depth: usize,
    half_life: Span,
    resize_every: Span,
    default_time: Option<Span>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    gpu_weights: BTreeMap<String, Factor>,
    /// None: those that are built in.
    classes: Option<BTreeMap<String, Class>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    teams: BTreeMap<String, TeamShape>,
    preemption: PreemptionRule,
    durations: DurationRule,
    topology: TopologyShape,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    spares: Vec<Spare>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reservations: Vec<ReservationShape>,
    #[serde(skip_serializing_if = "PricesShape::is_unset")]
    prices: PricesShape,
    goodput: GoodputRule,
    submissions: SubmissionRule,
    #[serde(skip_serializing_if = "WatchPolicy::is_default")]
    watch: WatchPolicy,
}

impl Default for PolicyShape {
    fn default() -> Self {
        let mut shape = PolicyShape::of(&Policy::default());
        shape.classes = None;
        shape
    }
}

impl PolicyShape {
    pub fn of(policy: &Policy) -> PolicyShape {
        let weight = |(model, &w): (&String, &u32)| (model.clone(), Factor(w));
        let team = |(name, team): (&String, &Team)| (name.clone(), TeamShape::of(team));
        PolicyShape {
            order: policy.order,
            placement: policy.placement,
            patience: policy.patience,
            starve_after: policy.starve_after,
            placements_max: policy.placements_max,
            reserved_heads: policy.reserved_heads,
            backfill_depth: policy.backfill_depth,
            half_life: policy.half_life,
            resize_every: policy.resize_every,
            default_time: policy.default_time,
            gpu_weights: policy.gpu_weights.iter().map(weight).collect(),
            classes: Some(policy.classes.clone()),
            teams: policy.teams.iter().map(team).collect(),
            preemption: policy.preemption.clone(),
            durations: policy.durations.clone(),
            topology: TopologyShape::of(&policy.topology),
            spares: policy.spares.clone(),
            reservations: policy.reservations.iter().map(ReservationShape::of).collect(),
            prices: PricesShape::of(&policy.prices),
            goodput: policy.goodput.clone(),
            submissions: policy.submissions.clone(),
            watch: policy.watch.clone(),
        }
    }

    pub fn into_policy(self) -> Checked<Policy> {
        let mut wrong = Vec::new();
        let gpu_weights = by_model("gpu_weights", self.gpu_weights, &mut wrong)
            .into_iter()
            .map(|(model, weight)| (model, weight.0))
            .collect();
        let prices = self.prices.into_prices(&mut wrong);
        let mut reservations = Vec::new();
        for (i, shape) in self.reservations.into_iter().enumerate() {
            match shape.into_reservation(i) {
                Ok(reservation) => reservations.push(reservation),
                Err(problem) => wrong.push(problem),
            }
        }
        let topology = self.topology.into_map("topology.").unwrap_or_else(|problems| {
            wrong.extend(problems);
            TopologyMap::default()
        });
        if !wrong.is_empty() {
            return Err(wrong);
        }
        Ok(Policy {
            order: self.order,
            placement: self.placement,
            patience: self.patience,
            starve_after: self.starve_after,
            placements_max: self.placements_max,
            reserved_heads: self.reserved_heads,
            backfill_depth: self.backfill_depth,
            half_life: self.half_life,
            default_time: self.default_time,
            gpu_weights,
            classes: self.classes.map_or_else(|| Policy::default().classes, with_default),
            teams: self.teams.into_iter().map(|(n, t)| (n, t.into_team())).collect(),
            preemption: self.preemption,
            durations: self.durations,
            resize_every: self.resize_every,
            reservations,
            topology,
            spares: self.spares,
            prices,
            goodput: self.goodput,
            submissions: self.submissions,
            watch: self.watch,
        })
    }
}

/// The class of jobs that name none is always there.
fn with_default(mut classes: BTreeMap<String, Class>) -> BTreeMap<String, Class> {
    classes.entry(DEFAULT_CLASS.to_owned()).or_default();
    classes
}

/// Models are read in lower case.
fn by_model<T>(
    under: &str,
    values: BTreeMap<String, T>,
    wrong: &mut Vec<BadPolicy>,
) -> BTreeMap<String, T> {
    let mut out = BTreeMap::new();
    for (model, value) in values {
        if out.insert(model.to_ascii_lowercase(), value).is_some() {
            wrong.push(bad(format!("{under}.{model}"), "given twice"));
        }
    }
    out
}

#[derive(Serialize, Deserialize)]
#[serde(default)]
struct PricesShape {
    currency: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    gpus: BTreeMap<String, Money>,
}

impl Default for PricesShape {
    fn default() -> Self {
        PricesShape::of(&Prices::default())
    }
}

impl PricesShape {
    fn of(prices: &Prices) -> PricesShape {
        let money = |(model, price): (&String, &Price)| (model.clone(), Money(price.clone()));
        let gpus = prices.gpus.iter().map(money).collect();
        PricesShape { currency: prices.currency.clone(), gpus }
    }

    fn is_unset(&self) -> bool {
        self.gpus.is_empty() && self.currency == Prices::default().currency
    }

    fn into_prices(self, wrong: &mut Vec<BadPolicy>) -> Prices {
        let gpus = by_model("prices.gpus", self.gpus, wrong);
        let gpus = gpus.into_iter().map(|(model, money)| (model, money.0)).collect();
        Prices { currency: self.currency, gpus }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(default)]
struct TeamShape {
    parent: Option<String>,
    #[serde(skip_serializing_if = "Quota::is_none")]
    guarantee: Quota,
    limit: Option<Quota>,
    weight: Factor,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    members: BTreeSet<String>,
    default_time: Option<Span>,
    budget: Option<Budget>,
}

impl Default for TeamShape {
    fn default() -> Self {
        TeamShape::of(&Team::default())
    }
}

impl TeamShape {
    fn of(team: &Team) -> TeamShape {
        TeamShape {
            parent: team.parent.clone(),
            guarantee: Quota(team.guarantee.clone()),
            limit: team.limit.clone().map(Quota),
            weight: Factor(team.weight),
            members: team.members.clone(),
            default_time: team.default_time,
            budget: team.budget,
        }
    }

    fn into_team(self) -> Team {
        Team {
            parent: self.parent,
            guarantee: self.guarantee.0,
            limit: self.limit.map(|q| q.0),
            weight: self.weight.0,
            members: self.members,
            default_time: self.default_time,
            budget: self.budget,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct ReservationShape {
    name: String,
    nodes: Hosts,
    from: Moment,
    #[serde(default)]
    until: Option<Moment>,
    #[serde(default, rename = "for")]
    lasts: Option<Span>,
    #[serde(default)]
    team: Option<String>,
}

impl ReservationShape {
    fn of(r: &Reservation) -> ReservationShape {
        ReservationShape {
            name: r.name.clone(),
            nodes: Hosts(r.nodes.clone()),
            from: Moment(r.from),
            until: Some(Moment(r.until)),
            lasts: None,
            team: r.team.clone(),
        }
    }

    fn into_reservation(self, index: usize) -> Result<Reservation, BadPolicy> {
        let until = match (self.until, self.lasts) {
            (Some(until), None) => until.0,
            (None, Some(lasts)) => self.from.0.plus(lasts),
            (Some(_), Some(_)) => {
                return Err(bad(format!("reservations[{index}].for"), "not together with 'until'"));
            }
            (None, None) => {
                let problem = "when it ends is missing: write until = \"…\" or for = \"4h\"";
                return Err(bad(format!("reservations[{index}]"), problem));
            }
        };
        let Hosts(nodes) = self.nodes;
        Ok(Reservation { name: self.name, nodes, from: self.from.0, until, team: self.team })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(default)]
pub(super) struct TopologyShape {
    rack_label: String,
    rail_label: String,
    site_label: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    racks: BTreeMap<String, RackShape>,
    /// Nodes that stand in no rack, or in a rack whose name is used twice. Keys may be ranges.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    nodes: BTreeMap<String, Place>,
}

#[derive(Serialize, Deserialize)]
struct RackShape {
    nodes: Hosts,
    #[serde(default)]
    rail: Option<String>,
    #[serde(default)]
    site: Option<String>,
}

impl Default for TopologyShape {
    fn default() -> Self {
        TopologyShape::of(&TopologyMap::default())
    }
}

impl TopologyShape {
    fn of(map: &TopologyMap) -> TopologyShape {
        let mut by_place: BTreeMap<&Place, BTreeSet<String>> = BTreeMap::new();
        for (node, place) in &map.nodes {
            by_place.entry(place).or_default().insert(node.clone());
        }
        let (mut racks, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        for (place, names) in by_place {
            match &place.rack {
                Some(rack) if !racks.contains_key(rack) => {
                    let (rail, site) = (place.rail.clone(), place.site.clone());
                    racks.insert(rack.clone(), RackShape { nodes: Hosts(names), rail, site });
                }
                _ => nodes.extend(hosts::compress(&names).into_iter().map(|n| (n, place.clone()))),
            }
        }
        TopologyShape {
            rack_label: map.rack_label.clone(),
            rail_label: map.rail_label.clone(),
            site_label: map.site_label.clone(),
            racks,
            nodes,
        }
    }

    /// `under` is put before the keys of problems.
    pub fn into_map(self, under: &str) -> Checked<TopologyMap> {
        let mut nodes = BTreeMap::new();
        let mut wrong = Vec::new();
        let mut put = |path: String, names: BTreeSet<String>, place: &Place| {
            for name in names {
                if nodes.insert(name.clone(), place.clone()).is_some() {
                    wrong.push(bad(path.clone(), format!("{name} has a place already")));
                    return;
                }
            }
        };
        for (rack, RackShape { nodes: Hosts(names), rail, site }) in self.racks {
            let path = format!("{under}racks.{rack}.nodes");
            put(path, names, &Place { site, rail, rack: Some(rack) });
        }
        let mut unreadable = Vec::new();
        for (text, place) in self.nodes {
            let path = format!("{under}nodes.{text}");
            match hosts::expand(&text) {
                Ok(names) => put(path, names.into_iter().collect(), &place),
                Err(e) => unreadable.push(bad(path, e.to_string())),
            }
        }
        wrong.append(&mut unreadable);
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let TopologyShape { rack_label, rail_label, site_label, .. } = self;
        Ok(TopologyMap { nodes, rack_label, rail_label, site_label })
    }
}
