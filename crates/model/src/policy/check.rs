//! What is wrong with a policy. An operator is told everything at once, with the key of each.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    BadPolicy, Class, DEFAULT_CLASS, DEFAULT_TEAM, GpuQuota, Policy, Reservation, SubmissionRule,
    Team,
};
use crate::{Bytes, Span, Topology};

/// Bounds on what one policy may carry: it is part of every snapshot, and every pass walks it.
const TEAMS_MAX: usize = 10_000;
const CLASSES_MAX: usize = 100;
const RESERVATIONS_MAX: usize = 10_000;
const DEPTH_MAX: usize = 16;
const NAME_MAX: usize = 200;
const HEADS_MAX: usize = 1000;
const MARGIN_PERCENT_MAX: u32 = 10_000;
const PRICE_MICROS_MAX: u64 = 1_000_000_000_000;

impl Policy {
    /// Everything that is wrong with it; empty if it may become the running policy.
    pub fn problems(&self) -> Vec<BadPolicy> {
        let mut found = Found::default();
        self.knobs(&mut found);
        self.check_classes(&mut found);
        self.check_teams(&mut found);
        self.check_reservations(&mut found);
        self.check_topology(&mut found);
        self.check_spares(&mut found);
        self.check_prices(&mut found);
        found.add_if(self.goodput.idle_below > 100, "goodput.idle_below", || {
            "is a percentage: at most 100".to_owned()
        });
        found.add_if(self.goodput.idle_after < Span::secs(2), "goodput.idle_after", || {
            "must be at least 2s: samples come once a second".to_owned()
        });
        self.check_submissions(&mut found);
        self.check_watch(&mut found);
        found.0
    }

    fn knobs(&self, found: &mut Found) {
        let at_least_one = [
            ("placements_max", self.placements_max),
            ("backfill_depth", self.backfill_depth),
            ("preemption.victims_max", self.preemption.victims_max),
        ];
        for (path, value) in at_least_one {
            found.add_if(value == 0, path, || "must be at least 1".to_owned());
        }
        found.add_if(self.reserved_heads > HEADS_MAX, "reserved_heads", || {
            format!("at most {HEADS_MAX} jobs can hold a time to start")
        });
        found.add_if(self.half_life < Span::secs(1), "half_life", || {
            "must be at least 1s".to_owned()
        });
        found.add_if(
            self.durations.margin_percent > MARGIN_PERCENT_MAX,
            "durations.margin_percent",
            || format!("must be at most {MARGIN_PERCENT_MAX}"),
        );
        let of_class = |(name, class): (&String, &Class)| {
            (format!("classes.{name}.default_time"), class.default_time)
        };
        let of_team = |(name, team): (&String, &Team)| {
            (format!("teams.{name}.default_time"), team.default_time)
        };
        let own = [("default_time".to_owned(), self.default_time)];
        let times = self.classes.iter().map(of_class).chain(self.teams.iter().map(of_team));
        for (path, time) in own.into_iter().chain(times) {
            found.add_if(time == Some(Span(0)), path, || {
                "a limit of 0 would end every job at once: leave it out for none".to_owned()
            });
        }
        for (model, weight) in &self.gpu_weights {
            found.add_if(*weight == 0, format!("gpu_weights.{model}"), || {
                "must be more than 0: time on a GPU is never free".to_owned()
            });
        }
    }

    fn check_submissions(&self, found: &mut Found) {
        let rule = &self.submissions;
        let (path, most) = ("submissions.job_bytes", SubmissionRule::JOB_BYTES_MAX);
        found.add_if(rule.job_bytes > most, path, || {
            format!("must be at most {most}: no request may be larger")
        });
        found.add_if(rule.job_bytes < Bytes(1024), path, || {
            "must be at least 1KiB: a command has to fit".to_owned()
        });
        let wider = [
            ("submissions.user_bytes", rule.user_bytes, "job_bytes", rule.job_bytes),
            ("submissions.team_bytes", rule.team_bytes, "user_bytes", rule.user_bytes),
        ];
        for (path, value, name, least) in wider {
            found.add_if(value < least, path, || {
                format!("must be at least {name}, which is {least}")
            });
        }
    }

    fn check_classes(&self, found: &mut Found) {
        found.add_if(!self.classes.contains_key(DEFAULT_CLASS), "classes", || {
            format!("'{DEFAULT_CLASS}' must be among them: it is the class of jobs that name none")
        });
        found.add_if(self.classes.len() > CLASSES_MAX, "classes", || {
            format!("at most {CLASSES_MAX} classes, these are {}", self.classes.len())
        });
        self.classes.keys().for_each(|name| found.name(&format!("classes.{name}"), name));
    }

    fn check_teams(&self, found: &mut Found) {
        found.add_if(self.teams.len() > TEAMS_MAX, "teams", || {
            format!("at most {TEAMS_MAX} teams, these are {}", self.teams.len())
        });
        for (name, team) in &self.teams {
            let path = format!("teams.{name}");
            found.name(&path, name);
            self.check_parent(&path, name, team, found);
            found.add_if(team.weight == 0, format!("{path}.weight"), || {
                "must be more than 0: a team without any share could never run".to_owned()
            });
            check_limit(&path, team, found);
            let nothing = team.budget.is_some_and(|b| b.gpu_hours == 0);
            found.add_if(nothing, format!("{path}.budget.gpu_hours"), || {
                "must be at least 1".to_owned()
            });
        }
        for (parent, needed) in self.promised_to_children() {
            let Some(team) = self.teams.get(parent).filter(|t| !t.guarantee.is_none()) else {
                continue;
            };
            if let Some(problem) = uncovered(&needed, &team.guarantee) {
                let problem = format!("the teams under it are guaranteed more: {problem}");
                found.add(format!("teams.{parent}.guarantee"), problem);
            }
        }
    }

    fn check_parent(&self, path: &str, name: &str, team: &Team, found: &mut Found) {
        let Some(parent) = &team.parent else { return };
        let path = format!("{path}.parent");
        if !self.teams.contains_key(parent) {
            return found.add(path, format!("there is no team '{parent}'"));
        }
        let line = self.line_of(name);
        let top = line[line.len() - 1];
        if self.teams.get(top).is_some_and(|t| t.parent.is_some()) {
            found.add(path, format!("goes in a circle: {}", line.join(" in ")));
        } else if line.len() > DEPTH_MAX {
            found.add(path, format!("is {} levels deep, at most {DEPTH_MAX} are", line.len()));
        }
    }

    /// What the children of each team are guaranteed together. A child without a guarantee of its
    /// own passes on what its own children have.
    fn promised_to_children(&self) -> BTreeMap<&str, GpuQuota> {
        let mut sums: BTreeMap<&str, GpuQuota> = BTreeMap::new();
        for (name, team) in self.teams.iter().filter(|(_, t)| !t.guarantee.is_none()) {
            if let Some(parent) = self.answers_for(name) {
                add(sums.entry(parent).or_default(), &team.guarantee);
            }
        }
        sums
    }

    fn check_reservations(&self, found: &mut Found) {
        found.add_if(self.reservations.len() > RESERVATIONS_MAX, "reservations", || {
            format!("at most {RESERVATIONS_MAX}, these are {}", self.reservations.len())
        });
        let mut names = BTreeSet::new();
        for reservation in &self.reservations {
            let path = format!("reservations.{}", reservation.name);
            found.name(&path, &reservation.name);
            found.add_if(!names.insert(&reservation.name), path.as_str(), || {
                "there are two of this name".to_owned()
            });
            self.check_reservation(&path, reservation, found);
        }
    }

    fn check_reservation(&self, path: &str, reservation: &Reservation, found: &mut Found) {
        found.add_if(reservation.until <= reservation.from, format!("{path}.until"), || {
            "must be later than from".to_owned()
        });
        found.add_if(reservation.nodes.is_empty(), format!("{path}.nodes"), || {
            "names no node".to_owned()
        });
        let Some(team) = &reservation.team else { return };
        // Without configured teams anybody may name any, so any may have a reservation.
        let known = self.teams.is_empty() || self.teams.contains_key(team) || team == DEFAULT_TEAM;
        found.add_if(!known, format!("{path}.team"), || format!("there is no team '{team}'"));
    }

    fn check_topology(&self, found: &mut Found) {
        let map = &self.topology;
        let labels =
            [("rack", &map.rack_label), ("rail", &map.rail_label), ("site", &map.site_label)];
        for (level, label) in labels {
            found.name(&format!("topology.{level}_label"), label);
        }
        for (node, place) in &map.nodes {
            let path = format!("topology.nodes.{node}");
            found.name(&path, node);
            for (level, name) in
                [("rack", &place.rack), ("rail", &place.rail), ("site", &place.site)]
            {
                name.iter().for_each(|name| found.name(&format!("{path}.{level}"), name));
            }
        }
    }

    fn check_prices(&self, found: &mut Found) {
        found.name("prices.currency", &self.prices.currency);
        for (model, price) in &self.prices.gpus {
            let path = format!("prices.gpus.{model}");
            found.name(&path, model);
            found.add_if(price.micros > PRICE_MICROS_MAX, path.as_str(), || {
                "more than a million an hour for one GPU".to_owned()
            });
            let shape = price.shape.as_deref();
            if let Some(problem) = shape.and_then(|shape| self.prices.misfit(model, shape)) {
                found.add(path, problem);
            }
        }
    }

    fn check_watch(&self, found: &mut Found) {
        for (key, problem) in self.watch.problems() {
            found.add(format!("watch.{key}"), problem);
        }
    }

    fn check_spares(&self, found: &mut Found) {
        for (n, spare) in self.spares.iter().enumerate() {
            found.add_if(spare.per < Topology::Rack, format!("spares.{n}.per"), || {
                format!("spares are whole nodes: rack or wider, not {}", spare.per.as_str())
            });
        }
    }
}

#[derive(Default)]
struct Found(Vec<BadPolicy>);

impl Found {
    fn add(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.0.push(BadPolicy { path: path.into(), problem: problem.into() });
    }

    fn add_if(&mut self, bad: bool, path: impl Into<String>, problem: impl FnOnce() -> String) {
        if bad {
            self.add(path, problem());
        }
    }

    fn name(&mut self, path: &str, name: &str) {
        let bad = name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control);
        self.add_if(bad, path, || format!("a name has 1 to {NAME_MAX} bytes, none of control"));
    }
}

/// A team must be able to use what it is guaranteed.
fn check_limit(path: &str, team: &Team, found: &mut Found) {
    let Some(limit) = &team.limit else { return };
    let guarantee = &team.guarantee;
    let of_model = |(model, most): (&String, &u32)| {
        guarantee.models.get(model).is_some_and(|least| least > most)
    };
    // A limit that names only models does not limit the sum.
    let sum_counts = limit.any > 0 || limit.models.is_empty();
    let of_all = sum_counts && guarantee.total() > u64::from(limit.any);
    found.add_if(of_all || limit.models.iter().any(of_model), format!("{path}.limit"), || {
        format!("is less than the guarantee: {limit} against {guarantee}")
    });
}

fn add(sum: &mut GpuQuota, more: &GpuQuota) {
    sum.any = sum.any.saturating_add(more.any);
    for (model, n) in &more.models {
        let count = sum.models.entry(model.clone()).or_default();
        *count = count.saturating_add(*n);
    }
}

/// Why a quota does not cover a need, if so. What a model's own number does not cover is taken
/// from the GPUs of any model; GPUs of a certain model can't stand in for any.
fn uncovered(need: &GpuQuota, have: &GpuQuota) -> Option<String> {
    let short = |(model, n): (&String, &u32)| {
        u64::from(n.saturating_sub(have.models.get(model).copied().unwrap_or(0)))
    };
    let of_any = u64::from(need.any) + need.models.iter().map(short).sum::<u64>();
    (of_any > u64::from(have.any)).then(|| format!("{need} against {have}"))
}

#[cfg(test)]
mod tests;
