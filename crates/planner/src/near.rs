//! What somebody may have meant.

use crate::words::thousands;

/// Letters and digits alone, small: `Llama-3.1_8B` and `llama3.1 8b` are one name.
pub(crate) fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect()
}

/// Dots kept: GPT-3 1.3B is not GPT-3 13B.
pub(crate) fn dotted(name: &str) -> String {
    let kept = |c: &char| c.is_ascii_alphanumeric() || *c == '.';
    name.chars().filter(kept).map(|c| c.to_ascii_lowercase()).collect()
}

/// Longer than any name: nothing is near to it, and comparing would take long.
const LONG: usize = 64;

/// The closest of `names`, where one is close, else one that begins so. Ties go to the one that is listed first.
pub(crate) fn near<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let word = plain(word);
    if word.len() > LONG {
        return None;
    }
    let far = (word.len() / 3).max(1);
    let names: Vec<&str> = names.into_iter().collect();
    let close = names
        .iter()
        .map(|n| (strsim::damerau_levenshtein(&word, &plain(n)), *n))
        .filter(|(d, _)| *d <= far)
        .min_by_key(|(d, _)| *d)
        .map(|(_, n)| n);
    let begins = || names.iter().copied().find(|n| word.len() >= 3 && plain(n).starts_with(&word));
    close.or_else(begins)
}

/// ` (did you mean 'x'?)`, or nothing.
pub(crate) fn did_you_mean(near: Option<&str>) -> String {
    near.map(|n| format!(" (did you mean '{n}'?)")).unwrap_or_default()
}

/// `1 node`, `2 nodes`, `1,024 nodes`.
pub(crate) fn count(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(n), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_understood_and_a_stranger_is_not() {
        let names = ["llama-3.1-8b", "qwen3-8b"];
        assert_eq!(near("lama-3.1-8B", names), Some("llama-3.1-8b"));
        assert_eq!(near("qwen3", names), Some("qwen3-8b"));
        assert_eq!(near("stable diffusion", names), None);
        assert_eq!(near(&"llama".repeat(1000), names), None);
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(count(1, "node"), "1 node");
        assert_eq!(count(2, "node"), "2 nodes");
        assert_eq!(count(1_234_567, "node"), "1,234,567 nodes");
    }
}
