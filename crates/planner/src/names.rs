//! Models that are known by name.

mod table;

use crate::Arch;
use crate::family::{Family, Shape, family};
use crate::near::{did_you_mean, dotted, near, plain};

pub use table::all;

/// A model that can be planned by its name.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    pub name: &'static str,
    /// As a config.json calls its kind.
    pub family: &'static str,
    shape: Shape,
}

impl Named {
    pub fn arch(&self) -> Arch {
        self.of().arch(self.name, &self.shape)
    }

    fn of(&self) -> &'static Family {
        family(self.family).expect("every row names a family, a test says so")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no model is called '{name}'{}", hint(near.as_deref()))]
pub struct UnknownModel {
    pub name: String,
    pub near: Option<String>,
}

fn hint(near: Option<&str>) -> String {
    match near {
        Some(_) => did_you_mean(near),
        None => "; give its config.json, or its numbers".to_owned(),
    }
}

/// Whose model it is and how it was tuned say nothing of its shape.
const OWNERS: [&str; 2] = ["meta", "nvidia"];
#[rustfmt::skip]
const TUNED: [&str; 16] = [
    "instruct", "chat", "it", "hf", "base", "thinking", "pt", "2507", "0324", "0528",
    "v0.1", "v0.2", "v0.3", "v01", "v02", "v03",
];

/// The model of that name. Case, dashes and dots do not matter, nor does the owner (`meta-llama/…`).
pub fn find(name: &str) -> Result<Arch, UnknownModel> {
    let short = name.rsplit('/').next().unwrap_or(name);
    let found = matching(dotted(short), dotted).or_else(|| matching(plain(short), plain));
    if let Some(named) = found {
        return Ok(named.arch());
    }
    let near = near(short, all().iter().map(|n| n.name)).map(str::to_owned);
    Err(UnknownModel { name: name.to_owned(), near })
}

/// The model of that name, or of the name without what says nothing of the shape.
fn matching(mut word: String, plain: fn(&str) -> String) -> Option<&'static Named> {
    loop {
        match all().iter().find(|n| plain(n.name) == word) {
            None => word = shorter(&word)?,
            found => return found,
        }
    }
}

fn shorter(word: &str) -> Option<String> {
    let tail = TUNED.iter().find_map(|t| word.strip_suffix(t));
    let head = || OWNERS.iter().find_map(|o| word.strip_prefix(o));
    tail.or_else(head).filter(|w| !w.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published counts, in 10⁹: all weights, and those that a token passes where experts are chosen.
    const PUBLISHED: &[(&str, f64, Option<f64>)] = &[
        ("llama-2-7b", 6.738, None),
        ("llama-2-70b", 68.977, None),
        ("llama-3-8b", 8.030, None),
        ("llama-3-70b", 70.554, None),
        ("llama-3.1-405b", 405.853, None),
        ("llama-3.2-1b", 1.236, None),
        ("llama-3.2-3b", 3.213, None),
        ("llama-4-scout", 107.8, Some(17.2)),
        ("llama-4-maverick", 400.7, Some(17.2)),
        ("qwen2.5-0.5b", 0.494, None),
        ("qwen2.5-7b", 7.616, None),
        ("qwen2.5-32b", 32.764, None),
        ("qwen2.5-72b", 72.706, None),
        ("qwen3-0.6b", 0.596, None),
        ("qwen3-8b", 8.191, None),
        ("qwen3-32b", 32.762, None),
        ("qwen3-30b-a3b", 30.532, Some(3.35)),
        ("qwen3-235b-a22b", 235.094, Some(22.19)),
        ("qwen3-coder-480b-a35b", 480.155, Some(35.5)),
        ("mistral-7b", 7.242, None),
        ("mistral-nemo-12b", 12.248, None),
        ("mistral-large-123b", 122.610, None),
        ("mixtral-8x7b", 46.703, Some(12.88)),
        ("mixtral-8x22b", 140.621, Some(39.15)),
        ("gemma-2-9b", 9.242, None),
        ("gemma-2-27b", 27.227, None),
        ("gemma-3-1b", 1.000, None),
        ("gemma-3-27b", 27.009, None),
        ("phi-3-mini", 3.821, None),
        ("phi-4", 14.660, None),
        ("phi-3.5-moe", 41.873, Some(6.6)),
        ("deepseek-v2", 235.741, Some(21.4)),
        ("deepseek-v2-lite", 15.706, Some(2.66)),
        ("deepseek-v3", 671.026, Some(37.55)),
        ("kimi-k2", 1026.4, Some(32.9)),
        ("gpt-oss-20b", 20.91, Some(4.19)),
        ("gpt-oss-120b", 116.83, Some(5.71)),
        ("olmo-2-7b", 7.299, None),
        ("olmo-2-32b", 32.234, None),
        ("olmoe-1b-7b", 6.919, Some(1.28)),
        ("gpt-2", 0.124_439_808, None),
        ("gpt-2-xl", 1.557_611_200, None),
        ("gpt-3-175b", 174.604, None),
        ("bloom-176b", 176.247, None),
        ("bloom-560m", 0.559_214_592, None),
        ("opt-125m", 0.125_239_296, None),
        ("opt-66b", 65.719, None),
        ("falcon-7b", 6.921_720_704, None),
        ("falcon-40b", 41.303, None),
        ("falcon-180b", 178.7, None),
        ("nemotron-4-15b", 15.6, None),
        ("nemotron-4-340b", 341.0, None),
        ("gpt-neox-20b", 20.554, None),
        ("glm-4.5-air", 106.85, None),
    ];

    #[test]
    fn weights_are_counted_as_they_were_published() {
        for &(name, all, active) in PUBLISHED {
            let arch = find(name).unwrap();
            let off = |is: f64, want: f64| (is / 1e9 / want - 1.0).abs();
            assert!(off(arch.params(), all) < 0.003, "{name}: {} not {all}", arch.params() / 1e9);
            if let Some(active) = active {
                assert!(
                    off(arch.active_params(), active) < 0.02,
                    "{name}: {} not {active}",
                    arch.active_params() / 1e9
                );
            }
        }
    }

    #[test]
    fn every_row_has_a_family_and_a_name_of_its_own() {
        let mut seen = std::collections::BTreeSet::new();
        for row in all() {
            assert!(family(row.family).is_some(), "{}", row.name);
            assert!(seen.insert(dotted(row.name)), "{} is listed twice", row.name);
            assert_eq!(crate::numbers::check(&row.arch()), Ok(()), "{}", row.name);
        }
    }

    #[test]
    fn names_are_found_however_they_are_written() {
        for name in [
            "llama-3.1-70b",
            "Llama 3.1 70B",
            "meta-llama/Llama-3.1-70B-Instruct",
            "Meta-Llama-3.1-70B",
            "llama_3_1_70b",
        ] {
            assert_eq!(find(name).unwrap().name, "llama-3.1-70b", "{name}");
        }
        assert_eq!(find("mistralai/Mixtral-8x7B-v0.1").unwrap().name, "mixtral-8x7b");
        assert_eq!(find("gpt3-1.3B").unwrap().name, "gpt-3-1.3b");
        assert_eq!(find("gpt-3 13b").unwrap().name, "gpt-3-13b");
        assert_eq!(find("google/gemma-3-27b-it").unwrap().name, "gemma-3-27b");
    }

    #[test]
    fn a_near_name_is_suggested() {
        let e = find("lama-3.1-80b").unwrap_err().to_string();
        assert!(e.contains("did you mean 'llama-3.1-8b'") || e.contains("llama-3.1-70b"), "{e}");
        let e = find("stable-diffusion-xl").unwrap_err().to_string();
        assert_eq!(
            e,
            "no model is called 'stable-diffusion-xl'; give its config.json, or its numbers"
        );
    }
}
