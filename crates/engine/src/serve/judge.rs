//! Whether a new revision does worse than the old one.

use tutti_model::{RolloutRule, Traffic};

#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// Not enough was asked of it yet.
    TooFew,
    Good,
    /// Why.
    Bad(String),
}

/// Errors are held against what the old one had, however little that was; how long the first byte
/// takes says something only if both were asked often enough.
pub fn judge(rule: &RolloutRule, old: Option<&Traffic>, new: Option<&Traffic>) -> Judgement {
    let Some(new) = new.filter(|t| t.requests > 0 && t.requests >= rule.min_requests) else {
        return Judgement::TooFew;
    };
    let (was, is) = (old.map_or(0.0, error_share), error_share(new));
    if is - was > rule.max_errors {
        return Judgement::Bad(format!("{is:.1}% of its requests fail, {was:.1}% did before"));
    }
    let known = old.filter(|t| t.requests > 0 && t.requests >= rule.min_requests);
    let median = |t: &Traffic| t.first_byte.quantile(0.5);
    if let (Some(was), Some(is)) = (known.and_then(median), median(new))
        && is.0 as f64 > was.0.max(1) as f64 * rule.max_slowdown
    {
        let why = format!("its first byte takes {is} at the median, {was} before");
        return Judgement::Bad(why);
    }
    Judgement::Good
}

/// In per cent.
fn error_share(traffic: &Traffic) -> f64 {
    traffic.errors as f64 * 100.0 / traffic.requests.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(requests: u64, errors: u64, first_ms: u64) -> Traffic {
        let mut traffic = Traffic { requests, errors, ..Traffic::default() };
        (0..requests).for_each(|_| traffic.first_byte.add(first_ms * 1000));
        traffic
    }

    #[test]
    fn a_table_of_figures() {
        let rule = RolloutRule::default();
        for (name, old, new, expected) in [
            ("the same", Some(traffic(100, 1, 50)), traffic(50, 1, 55), "good"),
            ("too few", Some(traffic(100, 0, 50)), traffic(19, 19, 50), "few"),
            ("too many errors", Some(traffic(100, 0, 50)), traffic(20, 1, 50), "bad"),
            ("as many as before", Some(traffic(100, 10, 50)), traffic(50, 6, 50), "good"),
            ("too slow", Some(traffic(100, 0, 50)), traffic(50, 0, 400), "bad"),
            ("slower than few", Some(traffic(5, 0, 50)), traffic(50, 0, 400), "good"),
            ("errors without a past", None, traffic(50, 10, 50), "bad"),
            ("nothing to compare with", None, traffic(50, 0, 50), "good"),
        ] {
            let found = match judge(&rule, old.as_ref(), Some(&new)) {
                Judgement::TooFew => "few",
                Judgement::Good => "good",
                Judgement::Bad(_) => "bad",
            };
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(judge(&rule, None, None), Judgement::TooFew);
    }
}
