//! Which of the replicas that may get a request gets it.

use std::time::Duration;

use twox_hash::XxHash3_64;

use super::replica::ReplicaKey;

/// A replica that may get the request, as far as a policy cares.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Where it stands in the endpoint's list.
    pub at: usize,
    pub key: ReplicaKey,
    pub load: u32,
    /// Of its share, while it starts slowly.
    pub weight: f64,
    /// Blocks of the prompt that it has seen, from the beginning.
    pub matched: usize,
    /// Blocks that it has seen in all.
    pub known: usize,
}

/// A match counts if it covers this part of the prompt.
const MATCH_PERCENT: usize = 30;
/// A replica is overloaded if it has this many times the load of the least loaded one, and
/// [`overload_margin`] more.
const OVERLOAD_PERCENT: u64 = 150;

/// How much more than the least loaded a replica may have for the sake of its cache. Less scatters
/// conversations over replicas at light load; more gains nothing in the test of a chat service.
pub fn overload_margin(target_in_flight: u32) -> u32 {
    (target_in_flight / 2).max(2)
}

/// In turn: the first after the last one, by key.
pub fn round_robin(candidates: &[Candidate], last: Option<ReplicaKey>) -> Option<Candidate> {
    let next = candidates.iter().find(|c| last.is_none_or(|last| c.key > last));
    next.or(candidates.first()).copied()
}

/// The least loaded; of equals the one whose turn it is.
pub fn least(candidates: &[Candidate], last: Option<ReplicaKey>) -> Option<Candidate> {
    let after = |c: &Candidate| last.is_none_or(|last| c.key > last);
    candidates.iter().min_by_key(|c| (c.load, !after(c), c.key)).copied()
}

/// The less loaded of two.
pub fn two_choices(candidates: &[Candidate], random: u64) -> Option<Candidate> {
    let count = candidates.len() as u64;
    if count < 2 {
        return candidates.first().copied();
    }
    let first = random % count;
    let second = (first + 1 + (random >> 32) % (count - 1)) % count;
    let (first, second) = (candidates[first as usize], candidates[second as usize]);
    Some(if second.load < first.load { second } else { first })
}

/// The same for the same value, by weighted rendezvous: when a replica comes, goes or gains weight, only
/// values that move to or from it move at all.
pub fn sticky(candidates: &[Candidate], value: &str, margin: u32) -> Option<Candidate> {
    let bearable = bearable_load(candidates, margin)?;
    let fit = candidates.iter().filter(|c| c.load <= bearable);
    fit.max_by(|a, b| score(a, value).total_cmp(&score(b, value))).copied()
}

fn score(candidate: &Candidate, value: &str) -> f64 {
    let seed = candidate.key.job.0.rotate_left(32) ^ candidate.key.generation.0;
    let hash = XxHash3_64::oneshot_with_seed(seed, value.as_bytes());
    let unit = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -candidate.weight / unit.ln()
}

/// The longest match that is worth it on a replica that is not overloaded; else the least loaded one, of
/// equals the one that has seen least, so that every replica's cache is used.
pub fn prefix(
    candidates: &[Candidate],
    blocks: usize,
    margin: u32,
    last: Option<ReplicaKey>,
) -> Option<Candidate> {
    let bearable = bearable_load(candidates, margin)?;
    let after = |c: &Candidate| last.is_none_or(|last| c.key > last);
    let fit = candidates.iter().filter(|c| c.load <= bearable && c.matched > 0);
    let best =
        fit.min_by_key(|c| (blocks - c.matched.min(blocks), c.load, c.known, !after(c), c.key));
    match best {
        Some(best) if best.matched * 100 >= blocks * MATCH_PERCENT => Some(*best),
        _ => candidates.iter().min_by_key(|c| (c.load, c.known, !after(c), c.key)).copied(),
    }
}

/// The load beyond which a replica is overloaded in comparison.
fn bearable_load(candidates: &[Candidate], margin: u32) -> Option<u32> {
    let least = candidates.iter().map(|c| c.load).min()?;
    let relative = u64::from(least) * OVERLOAD_PERCENT / 100;
    Some(u32::try_from(relative).unwrap_or(u32::MAX).max(least.saturating_add(margin)))
}

/// Lets replicas that start slowly have their weight's part of a fair share, and no more. Each gets a
/// little credit at every request and spends it when it is chosen.
pub fn earn(credit: f64, weight: f64, heaviest: f64, replicas: usize) -> f64 {
    (credit + weight / heaviest / replicas.max(1) as f64).min(2.0)
}

/// Whether all of this one's weight is there.
pub fn is_ramping(weight: f64, heaviest: f64) -> bool {
    weight < heaviest * 0.999
}

pub fn duration(span: tutti_model::Span) -> Duration {
    Duration::from_millis(span.0)
}
