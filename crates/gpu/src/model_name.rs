//! Short names for GPU models, as people write them in job files.

use tutti_model::Bytes;

/// Known models and their memory in GiB. A longer name comes before one that it contains.
const KNOWN: &[(&str, u64)] = &[
    ("gb300", 288),
    ("gb200", 192),
    ("gh200", 96),
    ("b300", 288),
    ("b200", 192),
    ("b100", 192),
    ("h200", 141),
    ("h100", 80),
    ("h800", 80),
    ("h20", 96),
    ("a100", 80),
    ("a800", 80),
    ("a40", 48),
    ("a30", 24),
    ("a10g", 24),
    ("a10", 24),
    ("a16", 16),
    ("a2", 16),
    ("l40s", 48),
    ("l40", 48),
    ("l4", 24),
    ("v100", 32),
    ("p100", 16),
    ("t4", 16),
];

/// Memory of a model nobody has told us about.
const UNKNOWN_GIB: u64 = 80;

/// "NVIDIA H100 80GB HBM3" is `h100`; a name that is not known becomes a slug of itself.
pub fn short_model(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let words = || lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
    // Whole words only: "RTX A4000" is no A40.
    if let Some((model, _)) = KNOWN.iter().find(|(model, _)| words().any(|w| w == *model)) {
        return (*model).to_owned();
    }
    let slug: Vec<&str> =
        words().filter(|w| !matches!(*w, "nvidia" | "tesla" | "geforce")).collect();
    if slug.is_empty() { "gpu".to_owned() } else { slug.join("-") }
}

/// NVLinks of each GPU on a board where they are all joined by switches; None for models that come as
/// cards, or in pairs.
pub fn nvlinks(model: &str) -> Option<u16> {
    match model {
        "b100" | "b200" | "b300" | "gb200" | "gb300" | "h100" | "h200" | "h800" | "h20" => Some(18),
        "a100" | "a800" => Some(12),
        "v100" => Some(6),
        _ => None,
    }
}

pub fn known_memory(model: &str) -> Bytes {
    let gib = KNOWN.iter().find(|(m, _)| *m == model).map_or(UNKNOWN_GIB, |(_, gib)| *gib);
    Bytes::gib(gib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_names_become_short() {
        for (name, short) in [
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA H200", "h200"),
            ("NVIDIA A100-SXM4-40GB", "a100"),
            ("A100-SXM4", "a100"),
            ("Tesla V100-SXM2-32GB", "v100"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA GB200", "gb200"),
            ("NVIDIA RTX A4000", "rtx-a4000"),
            ("NVIDIA GeForce RTX 4090", "rtx-4090"),
            ("h100", "h100"),
            ("", "gpu"),
        ] {
            assert_eq!(short_model(name), short, "{name}");
        }
    }
}
