//! The hysteresis of one rule on one subject.

use tutti_model::{Terms, Time};

/// What one look says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Bad,
    /// Neither, or not known: nothing begins and nothing ends.
    Between,
    Good,
}

/// What follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Stays,
    /// It is bad since then, and that is long enough.
    Fires {
        since: Time,
    },
    Ends,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Track {
    #[default]
    Quiet,
    Pending {
        since: Time,
    },
    Firing {
        good_since: Option<Time>,
    },
}

impl Track {
    pub fn restored() -> Track {
        Track::Firing { good_since: None }
    }

    pub fn step(&mut self, signal: Signal, terms: &Terms, now: Time) -> Turn {
        let (next, turn) = match (*self, signal) {
            (Track::Quiet, Signal::Bad) => pending(now, terms, now),
            (Track::Pending { since }, Signal::Bad) => pending(since, terms, now),
            (Track::Quiet | Track::Pending { .. }, _) => (Track::Quiet, Turn::Stays),
            (Track::Firing { good_since }, Signal::Good) => {
                clearing(good_since.unwrap_or(now), terms, now)
            }
            (Track::Firing { .. }, _) => (Track::restored(), Turn::Stays),
        };
        *self = next;
        turn
    }
}

fn pending(since: Time, terms: &Terms, now: Time) -> (Track, Turn) {
    match now.since(since) >= terms.lasts {
        true => (Track::Firing { good_since: None }, Turn::Fires { since }),
        false => (Track::Pending { since }, Turn::Stays),
    }
}

fn clearing(since: Time, terms: &Terms, now: Time) -> (Track, Turn) {
    match now.since(since) >= terms.clear {
        true => (Track::Quiet, Turn::Ends),
        false => (Track::Firing { good_since: Some(since) }, Turn::Stays),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tutti_model::{Limit, Span, WatchAction};

    use super::*;

    const ROUND: u64 = 5_000;

    fn terms(lasts: u64, clear: u64) -> Terms {
        Terms {
            limit: Limit::Count(1),
            within: Span(0),
            lasts: Span(lasts),
            clear: Span(clear),
            action: WatchAction::Tell,
        }
    }

    fn run(signals: &[Signal], terms: &Terms) -> Vec<(usize, Turn)> {
        let mut track = Track::default();
        let step = |(i, signal): (usize, &Signal)| {
            let turn = track.step(*signal, terms, Time(i as u64 * ROUND));
            (turn != Turn::Stays).then_some((i, turn))
        };
        signals.iter().enumerate().filter_map(step).collect()
    }

    fn signal() -> impl Strategy<Value = Signal> {
        prop_oneof![
            4 => Just(Signal::Bad),
            1 => Just(Signal::Between),
            4 => Just(Signal::Good),
        ]
    }

    /// How many looks in a row, up to this one, said so.
    fn streak(signals: &[Signal], upto: usize, wanted: Signal) -> u64 {
        signals[..=upto].iter().rev().take_while(|s| **s == wanted).count() as u64
    }

    proptest! {
        #[test]
        fn it_fires_after_so_long_and_no_round_later(
            runs in prop::collection::vec((signal(), 1usize..12), 1..30),
            lasts in 0u64..40_000,
            clear in 0u64..40_000,
        ) {
            let signals: Vec<Signal> =
                runs.into_iter().flat_map(|(signal, n)| vec![signal; n]).collect();
            let turns = run(&signals, &terms(lasts, clear));
            // Looks that are needed until so much time has passed.
            let needed = |span: u64| span.div_ceil(ROUND) + 1;
            let mut firing = false;
            for i in 0..signals.len() {
                let turn = turns.iter().find(|(at, _)| *at == i).map(|(_, turn)| *turn);
                match turn {
                    Some(Turn::Fires { since }) => {
                        prop_assert!(!firing, "on and off alternate");
                        prop_assert_eq!(streak(&signals, i, Signal::Bad).min(needed(lasts)), needed(lasts));
                        prop_assert!(i as u64 * ROUND - since.0 >= lasts);
                        prop_assert!(i as u64 * ROUND - since.0 < lasts + ROUND);
                        firing = true;
                    }
                    Some(Turn::Ends) => {
                        prop_assert!(firing, "on and off alternate");
                        prop_assert!(streak(&signals, i, Signal::Good) >= needed(clear));
                        firing = false;
                    }
                    _ => {}
                }
                // Nothing that is due is missed.
                if streak(&signals, i, Signal::Bad) >= needed(lasts) {
                    prop_assert!(firing);
                }
                if streak(&signals, i, Signal::Good) >= needed(clear) {
                    prop_assert!(!firing);
                }
            }
        }

        #[test]
        fn inside_the_band_nothing_changes(firing: bool, n in 1usize..200) {
            let mut track = if firing { Track::restored() } else { Track::Quiet };
            let before = track;
            for i in 0..n {
                let turn = track.step(Signal::Between, &terms(0, 0), Time(i as u64 * ROUND));
                prop_assert_eq!(turn, Turn::Stays);
            }
            prop_assert_eq!(track, before);
        }
    }
}
