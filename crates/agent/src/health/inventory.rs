//! What is missing since the agent last ran, and what did not answer when it was looked for.

use std::collections::BTreeSet;

use tutti_gpu::health::{Keep, Seen};
use tutti_model::{Finding, HardwareProblem, HealthAction, Span, Time};

/// The finding of a GPU that is gone.
pub const COUNT: &str = "gpu-count";

/// GPUs that were here before and are not any more.
pub fn missing(before: &BTreeSet<String>, there: &BTreeSet<String>, now: Time) -> Option<Seen> {
    let gone: Vec<&str> = before.difference(there).map(String::as_str).collect();
    if gone.is_empty() {
        return None;
    }
    let text = format!(
        "{} of {} {} gone since the agent last ran: {}",
        gone.len(),
        tutti_model::count(before.len() as u64, "GPU"),
        if gone.len() == 1 { "is" } else { "are" },
        gone.join(", ")
    );
    Some(seen(COUNT.to_owned(), COUNT, text, Keep::UntilResolved, now))
}

/// Devices that did not answer. Looked for again whenever the agent starts.
pub fn silent(problems: &[HardwareProblem], now: Time) -> Vec<Seen> {
    let day = Keep::For(Span::secs(86_400));
    let of = |p: &HardwareProblem| {
        let at = p.pci.as_deref().unwrap_or("?");
        let text = format!("device {at}: {}", p.message);
        seen(format!("device/{at}"), "device", text, day, now)
    };
    problems.iter().map(of).collect()
}

fn seen(key: String, check: &str, text: String, keep: Keep, now: Time) -> Seen {
    let finding = Finding {
        key,
        check: check.to_owned(),
        gpu: None,
        action: HealthAction::Note,
        text,
        since: now,
        drill: false,
        by_job: false,
    };
    Seen { finding, keep }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn a_gpu_that_is_gone_is_named_and_a_new_one_is_welcome() {
        assert_eq!(missing(&set(&[]), &set(&["a", "b"]), Time(0)), None);
        assert_eq!(missing(&set(&["a"]), &set(&["a", "b"]), Time(0)), None);
        let seen = missing(&set(&["a", "b", "c"]), &set(&["b"]), Time(0)).unwrap();
        let expected = "2 of 3 GPUs are gone since the agent last ran: a, c";
        assert_eq!(seen.finding.text, expected);
        assert_eq!(seen.keep, Keep::UntilResolved);
    }
}
