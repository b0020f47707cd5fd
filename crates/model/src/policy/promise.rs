//! Guarantees against what there is. A promise of GPUs that nobody has must not stop anybody: where
//! guarantees together are more than the cluster, each counts for its part of it.

use std::collections::BTreeMap;

use super::{BadPolicy, GpuQuota, Policy};
use crate::Node;

/// How many GPUs there are of each model, whether they work at the moment or not.
pub type GpusBuilt = BTreeMap<String, u32>;

/// Counts what these nodes are made of.
pub fn gpus_built<'n>(nodes: impl IntoIterator<Item = &'n Node>) -> GpusBuilt {
    let mut built = GpusBuilt::new();
    for gpu in nodes.into_iter().flat_map(|node| &node.facts.gpus) {
        match built.get_mut(&gpu.model) {
            Some(count) => *count += 1,
            None => {
                built.insert(gpu.model.clone(), 1);
            }
        }
    }
    built
}

impl Policy {
    /// The guarantees that count for less than is written, by team, because there are too few GPUs
    /// for all of them: each is cut to what exists, then all in proportion. Mostly none.
    pub fn scaled_guarantees(&self, built: &GpusBuilt) -> BTreeMap<&str, GpuQuota> {
        let guaranteed = || self.teams.iter().filter(|(_, team)| !team.guarantee.is_none());
        let tops = guaranteed().filter(|(name, _)| self.answers_for(name).is_none());
        let tops = tops.map(|(name, team)| (name.as_str(), &team.guarantee));
        let mut counts = fit_together(tops.collect(), built);
        if counts.is_empty() {
            return counts;
        }
        // A team under another has its part of what that one has. Teams are few levels deep.
        let mut below: Vec<(&str, &str)> = guaranteed()
            .filter_map(|(name, _)| Some((name.as_str(), self.answers_for(name)?)))
            .collect();
        below.sort_by_key(|(name, _)| self.line_of(name).len());
        for (name, above) in below {
            if let Some(now) = counts.get(above) {
                let part = part_of(&self.teams[name].guarantee, &self.teams[above].guarantee, now);
                counts.insert(name, part);
            }
        }
        counts.retain(|name, count| *count != self.teams[*name].guarantee);
        counts
    }

    /// The nearest team above with a guarantee: it answers for what this one is promised.
    pub(super) fn answers_for<'p>(&'p self, team: &'p str) -> Option<&'p str> {
        let promises = |name: &&str| self.teams.get(*name).is_some_and(|t| !t.guarantee.is_none());
        self.line_of(team).into_iter().skip(1).find(promises)
    }

    /// What a policy promises although it is not there, with the key of each.
    pub fn unkept_promises(&self, built: &GpusBuilt) -> Vec<BadPolicy> {
        let all: u32 = built.values().sum();
        let scaled = self.scaled_guarantees(built);
        let warning = |(team, counts): (&str, GpuQuota)| BadPolicy {
            path: format!("teams.{team}.guarantee"),
            problem: format!(
                "promises {}, but the cluster has {all} in all and others may be promised some: \
                 it counts as {} until nodes join",
                self.teams[team].guarantee, counts
            ),
        };
        scaled.into_iter().map(warning).collect()
    }
}

/// Cuts each to what exists of its models, and where they are still too many, all in proportion.
/// Empty if there is enough.
fn fit_together<'p>(
    tops: Vec<(&'p str, &'p GpuQuota)>,
    built: &GpusBuilt,
) -> BTreeMap<&'p str, GpuQuota> {
    let have = |model: &str| u64::from(built.get(model).copied().unwrap_or(0));
    let all: u64 = built.values().map(|n| u64::from(*n)).sum();
    let mut of_model: BTreeMap<&str, u64> = BTreeMap::new();
    for (model, n) in tops.iter().flat_map(|(_, quota)| &quota.models) {
        *of_model.entry(model).or_default() += u64::from(*n).min(have(model));
    }
    let cut = |quota: &GpuQuota| GpuQuota {
        any: whole(u64::from(quota.any).min(all)),
        models: quota
            .models
            .iter()
            .map(|(model, n)| {
                let (n, have) = (u64::from(*n).min(have(model)), have(model));
                (model.clone(), portion(n, have, of_model[model.as_str()]))
            })
            .collect(),
    };
    let cuts: BTreeMap<&str, GpuQuota> = tops.iter().map(|(name, q)| (*name, cut(q))).collect();
    let sum: u64 = cuts.values().map(GpuQuota::total).sum();
    let scale = |quota: &GpuQuota| GpuQuota {
        any: portion(quota.any.into(), all, sum),
        models: quota
            .models
            .iter()
            .map(|(model, n)| (model.clone(), portion((*n).into(), all, sum)))
            .collect(),
    };
    let scaled = cuts.iter().map(|(name, quota)| (*name, scale(quota)));
    let scaled: BTreeMap<&str, GpuQuota> = scaled.collect();
    if tops.iter().all(|(name, quota)| scaled[name] == **quota) { BTreeMap::new() } else { scaled }
}

/// What a guarantee is worth under one that counts as `now` instead of `written`.
fn part_of(own: &GpuQuota, written: &GpuQuota, now: &GpuQuota) -> GpuQuota {
    let of_any = |n: u32| portion(n.into(), now.any.into(), written.any.into());
    let of_model = |(model, n): (&String, &u32)| {
        let above = written.models.get(model).copied().unwrap_or(0);
        let left = now.models.get(model).copied().unwrap_or(0);
        let named = (*n).min(above);
        // What the number for this model does not cover comes from that for any.
        let part = portion(named.into(), left.into(), above.into()) + of_any(*n - named);
        (model.clone(), part)
    };
    GpuQuota { any: of_any(own.any), models: own.models.iter().map(of_model).collect() }
}

/// `n` of `asked` parts of `have`, but never more than `n`.
fn portion(n: u64, have: u64, asked: u64) -> u32 {
    if asked <= have { whole(n) } else { whole(n.saturating_mul(have) / asked) }
}

fn whole(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Team;

    fn quota(any: u32, models: &[(&str, u32)]) -> GpuQuota {
        GpuQuota { any, models: models.iter().map(|(m, n)| ((*m).to_owned(), *n)).collect() }
    }

    fn policy(teams: &[(&str, Option<&str>, GpuQuota)]) -> Policy {
        let team = |(name, parent, guarantee): &(&str, Option<&str>, GpuQuota)| {
            let parent = parent.map(str::to_owned);
            let guarantee = guarantee.clone();
            ((*name).to_owned(), Team { parent, guarantee, ..Team::default() })
        };
        Policy { teams: teams.iter().map(team).collect(), ..Policy::default() }
    }

    fn built(models: &[(&str, u32)]) -> GpusBuilt {
        models.iter().map(|(model, n)| ((*model).to_owned(), *n)).collect()
    }

    fn counts(policy: &Policy, models: &[(&str, u32)]) -> Vec<String> {
        let scaled = policy.scaled_guarantees(&built(models));
        scaled.into_iter().map(|(team, quota)| format!("{team}: {quota}")).collect()
    }

    #[test]
    fn what_exists_is_promised_as_written() {
        let p = policy(&[
            ("a", None, quota(4, &[("h100", 4)])),
            ("b", None, quota(8, &[])),
            ("b1", Some("b"), quota(8, &[])),
        ]);
        assert!(counts(&p, &[("h100", 16)]).is_empty());
        assert!(p.unkept_promises(&built(&[("h100", 16)])).is_empty());
    }

    /// A slip of the pen does not take away what others are promised.
    #[test]
    fn too_much_is_cut_to_what_exists_and_then_shared_in_proportion() {
        let p = policy(&[("a", None, quota(1000, &[])), ("b", None, quota(4, &[]))]);
        assert_eq!(counts(&p, &[("h100", 8)]), ["a: 5 GPUs", "b: 2 GPUs"]);
        let alone = policy(&[("a", None, quota(1000, &[]))]);
        assert_eq!(counts(&alone, &[("h100", 8)]), ["a: 8 GPUs"]);
        assert_eq!(counts(&alone, &[]), ["a: 0 GPUs"], "nothing has joined");
        let words = p.unkept_promises(&built(&[("h100", 8)]));
        assert_eq!(words.len(), 2);
        assert_eq!(words[0].path, "teams.a.guarantee");
        assert!(words[0].problem.contains("promises 1,000 GPUs"), "{}", words[0].problem);
        assert!(words[0].problem.contains("counts as 5 GPUs"), "{}", words[0].problem);
    }

    #[test]
    fn models_are_counted_apart() {
        let p = policy(&[
            ("a", None, quota(0, &[("h100", 8)])),
            ("b", None, quota(0, &[("h100", 8), ("a100", 2)])),
        ]);
        let found = counts(&p, &[("h100", 8), ("a100", 8)]);
        assert_eq!(found, ["a: 0 GPUs + 4 h100", "b: 0 GPUs + 2 a100 + 4 h100"]);
        let missing = policy(&[("a", None, quota(0, &[("b200", 8)]))]);
        assert_eq!(counts(&missing, &[("h100", 8)]), ["a: 0 GPUs + 0 b200"]);
    }

    #[test]
    fn teams_below_have_their_part_of_what_is_left() {
        let p = policy(&[
            ("a", None, quota(32, &[])),
            ("a1", Some("a"), quota(16, &[])),
            ("a2", Some("a"), quota(0, &[("h100", 8)])),
            ("a3", Some("a2"), quota(0, &[("h100", 4)])),
        ]);
        let found = counts(&p, &[("h100", 8)]);
        assert_eq!(
            found,
            ["a: 8 GPUs", "a1: 4 GPUs", "a2: 0 GPUs + 2 h100", "a3: 0 GPUs + 1 h100"]
        );
    }
}
