//! The lines under `policy`, each a change of what was before.

use tutti_model::{
    Class, GpuQuota, PlacementRule, Policy, QueueOrder, Reservation, Spare, Team, Topology,
};

use crate::words::{Read, named_attributes, names, number, span, split, thousandths, time};

pub fn line(policy: &mut Policy, line: &str) -> Read<()> {
    let words = split(line);
    match words.as_slice() {
        ["team", ..] => team(policy, line)?,
        ["class", ..] => class(policy, line)?,
        ["reservation", ..] => reservation(policy, line)?,
        ["no", "team", name] => {
            policy.teams.remove(*name);
        }
        ["no", "reservation", name] => policy.reservations.retain(|r| r.name != *name),
        ["gpu", model, "counts", weight] => {
            policy.gpu_weights.insert((*model).to_owned(), thousandths(weight)?);
        }
        ["spares", n, "per", level] => {
            policy.spares.push(Spare { per: level_of(level)?, nodes: number(n)? });
        }
        ["order", order] => policy.order = order_of(order)?,
        ["placement", rule @ ..] => policy.placement = placement_of(&rule.join(" "))?,
        _ => knob(policy, &words)?,
    }
    Ok(())
}

fn knob(policy: &mut Policy, words: &[&str]) -> Read<()> {
    match words {
        ["patience", t] => policy.patience = span(t)?,
        ["starve", "after", t] => policy.starve_after = span(t)?,
        ["half", "life", t] => policy.half_life = span(t)?,
        ["resize", "every", t] => policy.resize_every = span(t)?,
        ["heads", n] => policy.reserved_heads = number(n)?,
        ["placements", "per", "pass", n] => policy.placements_max = number(n)?,
        ["preemption", "off"] => policy.preemption.enabled = false,
        ["preemption", "on"] => policy.preemption.enabled = true,
        ["preemption", "not", "again", "within", t] => {
            policy.preemption.not_again_within = span(t)?;
        }
        ["preemption", "of", "at", "most", n] => policy.preemption.victims_max = number(n)?,
        ["learn", "durations"] => policy.durations.learn = true,
        ["learn", "durations", "with", "margin", percent] => {
            policy.durations.learn = true;
            policy.durations.margin_percent = number(percent.trim_end_matches('%'))?;
        }
        ["unknown", "durations", "count", "as", t] => policy.durations.assumed = span(t)?,
        _ => return Err(format!("'{}' says nothing about a policy", words.join(" "))),
    }
    Ok(())
}

/// `team research: parent lab, guarantee 8, limit 16, weight 2, members ada bob`
fn team(policy: &mut Policy, line: &str) -> Read<()> {
    let (left, attributes) =
        if line.contains(':') { named_attributes(line)? } else { (line, Vec::new()) };
    let words = split(left);
    let ["team", name] = words.as_slice() else {
        return Err(format!("'{left}' is no team with a name"));
    };
    let mut team = Team::default();
    let mut limit = GpuQuota::default();
    for attribute in attributes {
        let words = split(attribute);
        match words.as_slice() {
            ["parent", parent] => team.parent = Some((*parent).to_owned()),
            ["guarantee", of @ ..] => quota(&mut team.guarantee, of)?,
            ["limit", of @ ..] => {
                quota(&mut limit, of)?;
                team.limit = Some(limit.clone());
            }
            ["weight", weight] => team.weight = thousandths(weight)?,
            ["members", members @ ..] => {
                team.members = members.iter().map(|m| (*m).to_owned()).collect();
            }
            _ => return Err(format!("'{attribute}' says nothing about a team")),
        }
    }
    policy.teams.insert((*name).to_owned(), team);
    Ok(())
}

/// `8`, or `8 h100`.
fn quota(quota: &mut GpuQuota, words: &[&str]) -> Read<()> {
    match words {
        [n] => quota.any = number(n)?,
        [n, model] => {
            quota.models.insert((*model).to_owned(), number(n)?);
        }
        _ => return Err(format!("'{}' is no number of GPUs", words.join(" "))),
    }
    Ok(())
}

/// `class urgent: rank 100, admins only`
fn class(policy: &mut Policy, line: &str) -> Read<()> {
    let (left, attributes) = named_attributes(line)?;
    let words = split(left);
    let ["class", name] = words.as_slice() else {
        return Err(format!("'{left}' is no class with a name"));
    };
    let mut class = Class::default();
    for attribute in attributes {
        match split(attribute).as_slice() {
            ["rank", rank] => class.rank = number(rank)?,
            ["admins", "only"] => class.admins_only = true,
            _ => return Err(format!("'{attribute}' says nothing about a class")),
        }
    }
    policy.classes.insert((*name).to_owned(), class);
    Ok(())
}

/// `reservation power: n1 n2, from 2h, until 4h, for research`; for nobody: maintenance.
fn reservation(policy: &mut Policy, line: &str) -> Read<()> {
    let (left, attributes) = named_attributes(line)?;
    let words = split(left);
    let ["reservation", name] = words.as_slice() else {
        return Err(format!("'{left}' is no reservation with a name"));
    };
    let (mut nodes, mut from, mut until, mut team) = (Vec::new(), None, None, None);
    for attribute in attributes {
        let words = split(attribute);
        match words.as_slice() {
            ["from", t] => from = Some(time(t)?),
            ["until", t] => until = Some(time(t)?),
            ["for", name] => team = Some((*name).to_owned()),
            of => nodes.extend(names(of)?),
        }
    }
    let (Some(from), Some(until)) = (from, until) else {
        return Err("a reservation is from one time until another".to_owned());
    };
    let (name, nodes) = ((*name).to_owned(), nodes.into_iter().collect());
    policy.reservations.push(Reservation { name, nodes, from, until, team });
    Ok(())
}

pub fn level_of(word: &str) -> Read<Topology> {
    Ok(match word.trim_end_matches('s') {
        "island" => Topology::Island,
        "node" => Topology::Node,
        "rack" => Topology::Rack,
        "rail" => Topology::Rail,
        "site" => Topology::Site,
        "any" | "anywhere" => Topology::Any,
        _ => return Err(format!("'{word}' is none of island, node, rack, rail, site, any")),
    })
}

fn order_of(word: &str) -> Read<QueueOrder> {
    Ok(match word {
        "fair" => QueueOrder::Fair,
        "fair-known" => QueueOrder::FairKnown,
        "fifo" => QueueOrder::Fifo,
        "srtf" => QueueOrder::Srtf,
        "srsf" => QueueOrder::Srsf,
        _ => return Err(format!("'{word}' is none of fair, fair-known, fifo, srtf, srsf")),
    })
}

fn placement_of(words: &str) -> Read<PlacementRule> {
    Ok(match words {
        "fragments" => PlacementRule::Fragments,
        "best fit" => PlacementRule::BestFit,
        "first fit" => PlacementRule::FirstFit,
        _ => return Err(format!("'{words}' is none of fragments, best fit, first fit")),
    })
}
