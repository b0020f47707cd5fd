//! As many replicas of each revision as there should be: those that are missing are submitted, those
//! that are too many go, and what is exchanged is exchanged without fewer that answer.

use std::cmp::{Ordering, Reverse};

use tutti_model::{JobId, ReplicaOf, ReplicaPhase, RolloutStage, Span, Time};

use super::look::{Look, Seen, Standing};
use super::replicas::drain;
use crate::event::Event;

/// A new replica that has waited so long for GPUs will not get any beside the old ones.
pub(super) const NO_ROOM: Span = Span::secs(30);

/// How many there should be of the newest revision, and of all others.
pub(super) struct Shares {
    pub new: u32,
    pub old: u32,
    /// At most so many together, while they are exchanged.
    pub most: u32,
    /// None may be there on top: an old one goes before a new one comes.
    pub one_for_one: bool,
}

pub(super) fn shares(look: &Look<'_>) -> Shares {
    let endpoint = look.endpoint;
    let want = endpoint.want;
    let surge = endpoint.service().rollout.surge;
    let one_for_one = surge == 0;
    match endpoint.rollout.as_ref().map(|r| r.stage) {
        Some(RolloutStage::Canary { percent, .. }) if want > 0 => {
            let new = want.saturating_mul(percent).div_ceil(100).clamp(1, want);
            let old = want.saturating_add(surge).saturating_sub(new).clamp(1, want);
            Shares { new, old, most: old + new, one_for_one }
        }
        _ => Shares { new: want, old: 0, most: want.saturating_add(surge), one_for_one },
    }
}

pub(super) fn exchange(look: &Look<'_>) -> Vec<Event> {
    let newest = look.endpoint.newest();
    let (new, old): (Vec<&Seen<'_>>, Vec<&Seen<'_>>) =
        look.live().partition(|r| r.replica.revision == newest);
    let shares = shares(look);
    let mut events = Vec::new();
    let surplus = new.len().saturating_sub(shares.new as usize);
    let leave = first_to_go(&new).into_iter().take(surplus);
    events.extend(leave.map(|r| drain(look, r, "there are more than needed")));
    events.extend(old_ones(look, &shares, &new, &old));
    // While they are exchanged, those on their way out still have their GPUs.
    let going = look.replicas.iter().filter(|r| r.drains()).count();
    let exchanges = shares.one_for_one && look.endpoint.rollout.is_some();
    let room = match old.is_empty() && !exchanges {
        true => shares.new as usize,
        false => (shares.most as usize).saturating_sub(old.len() + going),
    };
    events.extend(missing(look, (shares.new as usize).min(room), (&new, newest), 0));
    events.extend(missing_old(look, &shares, &old, events.iter().filter(|e| is_new(e)).count()));
    events
}

fn is_new(event: &Event) -> bool {
    matches!(event, Event::JobSubmitted { .. })
}

/// While a canary is looked at, the old revision serves the others: what fails of it is replaced, and
/// when more is asked it grows too.
fn missing_old(look: &Look<'_>, shares: &Shares, old: &[&Seen<'_>], ids: usize) -> Vec<Event> {
    match look.endpoint.rollout.as_ref() {
        Some(rollout) if matches!(rollout.stage, RolloutStage::Canary { .. }) => {
            missing(look, shares.old as usize, (old, rollout.from), ids)
        }
        _ => Vec::new(),
    }
}

/// Those that do not answer, then those with the least to do, then the youngest.
fn first_to_go<'a, 'b>(replicas: &[&'a Seen<'b>]) -> Vec<&'a Seen<'b>> {
    let mut sorted = replicas.to_vec();
    let placed = |r: &Seen<'_>| !matches!(r.standing, Standing::Waits { .. });
    sorted.sort_by_key(|r| (r.is_ready(), placed(r), r.in_flight(), Reverse(r.id)));
    sorted
}

/// Old replicas that do not answer go at once, the others when as many as wanted answer without them.
fn old_ones(look: &Look<'_>, shares: &Shares, new: &[&Seen<'_>], old: &[&Seen<'_>]) -> Vec<Event> {
    let too_many = old.len().saturating_sub(shares.old as usize);
    let leave = first_to_go(old);
    let silent = leave.iter().take(too_many).filter(|r| !r.is_ready()).count();
    let ready = look.ready().count();
    let spare = ready.saturating_sub(look.endpoint.want as usize);
    let mut going = silent + spare.min(too_many - silent);
    let stays = going == 0 && too_many > 0;
    let first = stays && shares.one_for_one && may_go_first(look, new, old);
    let stuck = stays && !shares.one_for_one && ready > 1 && finds_no_room(look, new);
    going += usize::from(first || stuck);
    let newest = look.endpoint.newest();
    let why = match (stuck, first) {
        (true, _) => format!("there is no room for revision {newest} beside it"),
        (_, true) => format!("it makes room for revision {newest}"),
        _ => format!("revision {newest} takes its place"),
    };
    leave.into_iter().take(going).map(|r| drain(look, r, &why)).collect()
}

/// One old replica at a time makes room: the one before is gone, and who came for it is ready. A new one
/// that waits on top of all that are wanted came when it still might, and gets that room.
fn may_go_first(look: &Look<'_>, new: &[&Seen<'_>], old: &[&Seen<'_>]) -> bool {
    let (there, want) = (new.len() + old.len(), look.endpoint.want as usize);
    let settled = match there.cmp(&want) {
        Ordering::Less => false,
        Ordering::Equal => new.iter().all(|r| r.is_ready()),
        Ordering::Greater => !new.iter().any(|r| comes(r)),
    };
    settled && !look.replicas.iter().any(Seen::drains) && look.view.now >= look.endpoint.not_before
}

/// It has GPUs and does not answer yet.
fn comes(seen: &Seen<'_>) -> bool {
    !seen.is_ready() && !matches!(seen.standing, Standing::Waits { .. })
}

/// A new one waits for GPUs, none is on its way, and nobody has left for a while.
fn finds_no_room(look: &Look<'_>, new: &[&Seen<'_>]) -> bool {
    let now = look.view.now;
    let waits = |r: &Seen<'_>| matches!(r.standing, Standing::Waits { since } if now.since(since) >= NO_ROOM);
    let left = look.memory.and_then(|m| m.drained_at()).unwrap_or(Time(0));
    new.iter().any(|r| waits(r))
        && !new.iter().any(|r| comes(r))
        && !look.replicas.iter().any(Seen::drains)
        && now.since(left) >= NO_ROOM
}

/// What was told to go and is needed again comes back; the rest is submitted, after `ids` others. While
/// replicas fail, one at a time is tried.
fn missing(
    look: &Look<'_>,
    wanted: usize,
    (there, revision): (&[&Seen<'_>], u32),
    ids: usize,
) -> Vec<Event> {
    let endpoint = look.endpoint;
    let mut lacking = wanted.saturating_sub(there.len());
    let again = |r: &&Seen<'_>| {
        let in_time =
            matches!(r.replica.phase, ReplicaPhase::Draining { until } if until > look.view.now);
        let runs = matches!(r.standing, Standing::Runs { .. });
        in_time && runs && r.replica.revision == revision
    };
    let back: Vec<&Seen<'_>> = look.replicas.iter().filter(again).take(lacking).collect();
    lacking -= back.len();
    let phase = ReplicaPhase::Coming;
    let mut events: Vec<Event> = back
        .into_iter()
        .map(|r| {
            let why = Some("it was told to go and is needed again".to_owned());
            Event::ReplicaChanged { endpoint: look.name(), job: r.id, phase, why }
        })
        .collect();
    let recovers = look.ready().any(|r| r.replica.since >= endpoint.failed_at);
    if endpoint.failures > 0 && !recovers {
        let tried = there.iter().any(|r| !r.is_ready());
        lacking = lacking.min(usize::from(!tried));
    }
    if look.view.now < endpoint.not_before {
        lacking = 0;
    }
    let next = look.view.state.next_job.max(1) + ids as u64;
    events.extend((0..lacking as u64).filter_map(|n| submitted(look, JobId(next + n), revision)));
    events
}

fn submitted(look: &Look<'_>, job: JobId, revision: u32) -> Option<Event> {
    let endpoint = look.endpoint;
    Some(Event::JobSubmitted {
        job,
        user: endpoint.user.clone(),
        spec: endpoint.revision(revision)?.spec.clone(),
        texts: endpoint.revision(revision)?.texts.clone(),
        key: None,
        team: Some(endpoint.team.clone()),
        replica_of: Some(Box::new(ReplicaOf { endpoint: look.name(), revision })),
    })
}
