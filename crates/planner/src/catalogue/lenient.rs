//! GPUs by whatever name a driver, a cloud or a person gives them.

use super::gpus::{Kind, kinds};
use crate::Gpu;
use crate::near::plain;

/// What is meant where a name leaves the memory open.
const USUAL: [&str; 3] = ["V100-SXM2-32GB", "A100-SXM4-80GB", "A100-PCIe-80GB"];

/// The GPU that goes by this name: `h100`, `NVIDIA H100 80GB HBM3`, `Tesla V100-SXM2-16GB`.
pub fn gpu(name: &str) -> Option<Gpu> {
    kind(name, None).map(Kind::gpu)
}

/// Of those of this name the one whose memory is closest to `gb`: an A100 has 40 or 80.
pub fn gpu_with_memory(name: &str, gb: f64) -> Option<Gpu> {
    kind(name, Some(gb)).map(Kind::gpu)
}

/// The kind that a name speaks of, told apart by memory where it is known.
pub(crate) fn kind(name: &str, gb: Option<f64>) -> Option<&'static Kind> {
    let word = plain(name);
    // The longest mark wins: a GH200 is no H200, an L40S no L4.
    let mark = kinds().iter().map(mark).filter(|m| contains(&word, m)).max_by_key(|m| m.len())?;
    let same: Vec<&Kind> = kinds().iter().filter(|k| self::mark(k) == mark).collect();
    let form = ["pcie", "nvl"].into_iter().find(|f| word.contains(f)).unwrap_or("sxm");
    let formed: Vec<&Kind> =
        same.iter().copied().filter(|k| plain(k.name).contains(form)).collect();
    let left = if formed.is_empty() { same } else { formed };
    match gb.or_else(|| memory(&word, &left)) {
        Some(gb) => left
            .into_iter()
            .min_by(|a, b| (a.memory_gb - gb).abs().total_cmp(&(b.memory_gb - gb).abs())),
        None => left.iter().copied().find(|k| USUAL.contains(&k.name)).or(left.first().copied()),
    }
}

/// `a100` of `A100-SXM4-80GB`.
fn mark(kind: &Kind) -> String {
    plain(kind.name.split('-').next().unwrap_or(kind.name))
}

/// The mark, not followed by a digit: an H200 is no H20, an L40S no L4.
fn contains(word: &str, mark: &str) -> bool {
    word.match_indices(mark).any(|(at, _)| {
        let before = word[..at].ends_with(|c: char| c.is_ascii_digit());
        let after = word[at + mark.len()..].starts_with(|c: char| c.is_ascii_digit());
        // `h10080gbhbm3`: digits that follow are its memory.
        let memory = word[at + mark.len()..]
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .starts_with("gb");
        !before && (!after || memory)
    })
}

/// The memory that is part of the name, where one of these has it.
fn memory(word: &str, kinds: &[&Kind]) -> Option<f64> {
    kinds.iter().map(|k| k.memory_gb).find(|gb| word.contains(&format!("{gb}gb")))
}
