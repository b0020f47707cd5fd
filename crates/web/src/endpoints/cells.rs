//! Replicas as small cells. Each kind has a form and a sign of its own, so that nobody needs colours.

use maud::{Markup, html};
use tutti_model::{Replica, ReplicaPhase};

/// More are counted.
const CELLS_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ready,
    Coming,
    Draining,
    /// There should be one and is none.
    Missing,
    /// There may be one more.
    Room,
}

const KINDS: [Kind; 5] = [Kind::Ready, Kind::Coming, Kind::Draining, Kind::Missing, Kind::Room];

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Kind::Ready => "is-ready",
            Kind::Coming => "is-coming",
            Kind::Draining => "is-draining",
            Kind::Missing => "is-missing",
            Kind::Room => "is-room",
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Kind::Ready => "✓",
            Kind::Coming => "…",
            Kind::Draining => "↓",
            Kind::Missing => "?",
            Kind::Room => "",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Kind::Ready => "ready",
            Kind::Coming => "coming",
            Kind::Draining => "draining",
            Kind::Missing => "missing",
            Kind::Room => "room for more",
        }
    }
}

/// Those that go are no part of what there should be.
fn kinds(replicas: &[Replica], want: u32, max: u32) -> Vec<Kind> {
    let of = |replica: &Replica| match replica.phase {
        ReplicaPhase::Ready => Kind::Ready,
        ReplicaPhase::Coming => Kind::Coming,
        ReplicaPhase::Draining { .. } => Kind::Draining,
    };
    let mut kinds: Vec<Kind> = replicas.iter().map(of).collect();
    let there = kinds.iter().filter(|kind| **kind != Kind::Draining).count();
    let missing = (want as usize).saturating_sub(there);
    let room = (max as usize).saturating_sub(there.max(want as usize));
    kinds.extend(std::iter::repeat_n(Kind::Missing, missing));
    kinds.extend(std::iter::repeat_n(Kind::Room, room));
    kinds.sort_by_key(|kind| *kind as u8);
    kinds
}

pub fn draw(replicas: &[Replica], want: u32, max: u32) -> Markup {
    let kinds = kinds(replicas, want, max);
    let count = |of: Kind| kinds.iter().filter(|kind| **kind == of).count();
    let said = |kind: Kind| match (kind, count(kind)) {
        (_, 0) => None,
        (Kind::Room, n) => Some(format!("room for {n} more")),
        (kind, n) => Some(format!("{n} {}", kind.words())),
    };
    let said: Vec<String> = KINDS.into_iter().filter_map(said).collect();
    html! {
        @if !kinds.is_empty() {
            span.replicas role="img" aria-label={ "Replicas: " (said.join(", ")) } {
                @for kind in kinds.iter().take(CELLS_MAX) { (cell(*kind)) }
                @if kinds.len() > CELLS_MAX {
                    span.sub aria-hidden="true" { "+" (kinds.len() - CELLS_MAX) }
                }
            }
        }
    }
}

fn cell(kind: Kind) -> Markup {
    html! { i.replica.(kind.class()) aria-hidden="true" { (kind.sign()) } }
}

pub fn legend() -> Markup {
    html! {
        p.legend { @for kind in KINDS { span { (cell(kind)) (kind.words()) } } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::Time;

    fn replica(phase: ReplicaPhase) -> Replica {
        Replica { revision: 1, phase, since: Time(0) }
    }

    #[test]
    fn what_is_missing_is_drawn_and_what_goes_does_not_count() {
        let going = ReplicaPhase::Draining { until: Time(9) };
        let some = [going, ReplicaPhase::Coming, ReplicaPhase::Ready].map(replica);
        let wanted =
            [Kind::Ready, Kind::Coming, Kind::Draining, Kind::Missing, Kind::Room, Kind::Room];
        assert_eq!(kinds(&some, 3, 5), wanted);
        assert_eq!(kinds(&some, 1, 1), wanted[..3], "more than wanted, as in a rollout");
        assert_eq!(kinds(&[], 0, 2), [Kind::Room, Kind::Room]);
        let text = draw(&some, 3, 5).into_string();
        let said = "Replicas: 1 ready, 1 coming, 1 draining, 1 missing, room for 2 more";
        assert!(text.contains(said), "{text}");
    }

    #[test]
    fn every_kind_has_its_own_form_and_many_are_counted() {
        let signs: std::collections::BTreeSet<_> = KINDS.iter().map(|kind| kind.sign()).collect();
        assert_eq!(signs.len(), KINDS.len());
        let text = draw(&[], 4, 100).into_string();
        assert_eq!(text.matches("<i ").count(), CELLS_MAX);
        assert!(text.contains("+84") && text.contains("4 missing, room for 96 more"), "{text}");
    }
}
