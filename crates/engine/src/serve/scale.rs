//! How many replicas there should be.
//!
//! ```text
//!  requests ──► replicas that they need ──┬─ least over `up_after`   more than there are: so many
//!                                         ├─ most over `down_after`  fewer: so many, but one
//!                                         └─ nothing in `zero_after` none
//! ```

use tutti_model::{Replicas, ServiceSpec, Span, Time};

use super::Memory;

/// Another number than `want`, and why. `floor` is the least of now: by the bounds, the hour, or a
/// rollout.
pub fn wanted(
    want: u32,
    service: &ServiceSpec,
    bounds: Replicas,
    floor: u32,
    memory: Option<&Memory>,
    now: Time,
) -> Option<(u32, String)> {
    let most = bounds.max.max(floor);
    // A replica gets no more than its most, whatever is aimed at.
    let each = service.target_in_flight.min(service.max_in_flight.unwrap_or(u32::MAX)).max(1);
    let need = |requests: u32| requests.div_ceil(each);
    let other = |n: u32, why: String| (n != want).then_some((n, why));
    if want < floor || want > most {
        return other(want.clamp(floor, most), format!("there must be {floor} to {most}"));
    }
    let asked = memory?.asked(now)?;
    if want == 0 && asked > 0 {
        return other(need(asked).clamp(1, most), format!("{}, and no replica", requests(asked)));
    }
    let over = |span: Span| memory.and_then(|m| m.asked_over(span, now));
    if let Some((least, _)) = over(service.up_after)
        && need(least).min(most) > want
    {
        let why = format!("at least {} at a time for {}", requests(least), service.up_after);
        return other(need(least).min(most), why);
    }
    if floor == 0 && matches!(over(service.zero_after), Some((_, 0))) {
        return other(0, format!("no request for {}", service.zero_after));
    }
    let (_, peak) = over(service.down_after)?;
    let fewer = need(peak).clamp(floor.max(1), most.max(1));
    if fewer >= want {
        return None;
    }
    let asked = match peak {
        0 => "no request".to_owned(),
        _ => format!("at most {} at a time", requests(peak)),
    };
    other(fewer, format!("{asked} for {}", service.down_after))
}

fn requests(n: u32) -> String {
    tutti_model::count(n.into(), "request")
}

#[cfg(test)]
mod tests {
    use tutti_model::EndpointLoad;

    use super::*;

    fn at(seconds: u64) -> Time {
        Time(1_000_000 + seconds * 1000)
    }

    fn service() -> ServiceSpec {
        ServiceSpec {
            target_in_flight: 10,
            up_after: Span::secs(5),
            down_after: Span::secs(20),
            zero_after: Span::secs(60),
            ..ServiceSpec::default()
        }
    }

    /// So many requests at a time for so many seconds, one after another.
    fn heard(said: &[(u32, u64)]) -> (Memory, Time) {
        let (mut memory, mut second) = (Memory::default(), 0);
        for &(in_flight, seconds) in said {
            for _ in 0..seconds {
                let load = EndpointLoad { routers: 1, in_flight, ..EndpointLoad::default() };
                memory.note(&load, at(second));
                second += 1;
            }
        }
        (memory, at(second - 1))
    }

    #[test]
    fn a_table_of_loads() {
        for (name, want, bounds, said, expected) in [
            ("as many as needed", 1, (0, 8), &[(35, 6)][..], Some(4)),
            ("not before it has lasted", 1, (0, 8), &[(35, 5)], None),
            ("a peak is no need", 1, (0, 8), &[(5, 20), (80, 1)], None),
            ("what was asked for all the time", 1, (0, 8), &[(5, 20), (25, 3), (80, 3)], Some(3)),
            ("never more than the most", 1, (0, 3), &[(80, 6)], Some(3)),
            ("from none at once", 0, (0, 8), &[(1, 1)], Some(1)),
            ("from none to all that is needed", 0, (0, 8), &[(31, 1)], Some(4)),
            ("sleeping goes on", 0, (0, 8), &[(0, 100)], None),
            ("fewer after a while", 4, (0, 8), &[(15, 21)], Some(2)),
            ("not sooner", 4, (0, 8), &[(15, 20)], None),
            ("the largest need counts", 4, (0, 8), &[(38, 1), (15, 20)], None),
            ("one stays while it may be asked again", 4, (0, 8), &[(0, 21)], Some(1)),
            ("the last goes later", 1, (0, 8), &[(0, 60)], None),
            ("none after long", 1, (0, 8), &[(0, 61)], Some(0)),
            ("all go at once if the last may go sooner", 4, (0, 8), &[(0, 61)], Some(0)),
            ("one request keeps it awake", 1, (0, 8), &[(1, 1), (0, 60)], None),
            ("never fewer than the least", 4, (2, 8), &[(0, 100)], Some(2)),
            ("bounds hold at once", 1, (3, 8), &[(0, 1)], Some(3)),
            ("and from above", 8, (1, 2), &[(80, 1)], Some(2)),
        ] {
            let (memory, now) = heard(said);
            let bounds = Replicas { min: bounds.0, max: bounds.1 };
            let found = wanted(want, &service(), bounds, bounds.min, Some(&memory), now);
            assert_eq!(found.map(|(n, _)| n), expected, "{name}");
        }
    }

    #[test]
    fn the_last_may_go_sooner_than_the_others() {
        let service = ServiceSpec { zero_after: Span::secs(5), ..service() };
        let bounds = Replicas { min: 0, max: 8 };
        let (memory, now) = heard(&[(1, 1), (0, 6)]);
        let found = wanted(1, &service, bounds, 0, Some(&memory), now);
        assert_eq!(found.map(|(n, _)| n), Some(0));
    }

    #[test]
    fn what_a_replica_may_not_have_is_not_aimed_at() {
        let service = ServiceSpec { max_in_flight: Some(4), ..service() };
        let bounds = Replicas { min: 0, max: 8 };
        let (memory, now) = heard(&[(16, 6)]);
        let found = wanted(1, &service, bounds, 0, Some(&memory), now);
        assert_eq!(found.map(|(n, _)| n), Some(4));
    }

    #[test]
    fn nothing_changes_while_nobody_knows() {
        let bounds = Replicas { min: 0, max: 8 };
        assert_eq!(wanted(4, &service(), bounds, 0, None, at(0)), None);
        let (memory, now) = heard(&[(0, 100)]);
        let later = now.plus(Span::secs(60));
        assert_eq!(
            wanted(4, &service(), bounds, 0, Some(&memory), later),
            None,
            "routers are gone"
        );
    }

    #[test]
    fn what_a_rollout_needs_stays() {
        let (memory, now) = heard(&[(0, 100)]);
        let bounds = Replicas { min: 0, max: 8 };
        assert_eq!(wanted(1, &service(), bounds, 1, Some(&memory), now), None);
    }
}
