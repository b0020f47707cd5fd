//! Who works here, and on what.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

pub struct TeamOf {
    pub name: &'static str,
    /// Of all GPUs that it is guaranteed.
    pub percent: u32,
    pub members: &'static [&'static str],
}

pub const TEAMS: &[TeamOf] = &[
    TeamOf { name: "foundation", percent: 45, members: &["ada", "alan", "grace"] },
    TeamOf { name: "vision", percent: 14, members: &["barbara", "fei", "yann", "olga"] },
    TeamOf { name: "biology", percent: 12, members: &["rosalind", "jo", "linus"] },
    TeamOf { name: "speech", percent: 8, members: &["claude", "mei"] },
    TeamOf { name: "robotics", percent: 8, members: &["karel", "isaac", "hedy"] },
    TeamOf { name: "platform", percent: 8, members: &["edsger", "radia"] },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Training,
    Tuning,
    Trial,
}

/// Teams that try much more often than those that train for weeks.
pub fn team(rng: &mut ChaCha8Rng) -> &'static str {
    const OFTEN: &[&str] = &[
        "vision",
        "vision",
        "biology",
        "speech",
        "robotics",
        "robotics",
        "foundation",
        "platform",
    ];
    OFTEN[rng.random_range(0..OFTEN.len())]
}

pub fn name(rng: &mut ChaCha8Rng, team: &str, work: Work) -> String {
    let words: (&[&str], &[&str]) = match (work, team) {
        (Work::Training, "foundation") => (&["llm-13b", "llm-34b", "reward-34b"], &["cpt", "long"]),
        (Work::Training, "vision") => (&["vit-22b", "video-dit"], &["stage1", "stage2"]),
        (Work::Training, "biology") => (&["fold-pair", "esm-15b"], &["msa", "single"]),
        (Work::Training, "speech") => (&["asr-2b", "tts-flow"], &["en", "multi"]),
        (Work::Training, _) => (&["policy-7b", "world-model"], &["sim", "mix"]),
        (Work::Tuning, "foundation") => (&["sft-70b", "dpo-34b", "lora-70b"], &["a", "b", "c"]),
        (Work::Tuning, "vision") => (&["detr-ft", "sam-ft", "depth-ft"], &["v3", "v4"]),
        (Work::Tuning, "biology") => (&["binder-design", "dock-ft"], &["set1", "set2"]),
        (Work::Tuning, "speech") => (&["asr-ft", "diarize"], &["de", "fr", "ja"]),
        (Work::Tuning, "platform") => (&["quantize", "distill"], &["int8", "fp8"]),
        (Work::Tuning, _) => (&["grasp-ft", "nav-ppo"], &["r1", "r2"]),
        (Work::Trial, "vision") => (&["ablate", "profile", "overfit"], &["vit", "unet"]),
        (Work::Trial, "biology") => (&["md-short", "score"], &["wt", "mut"]),
        (Work::Trial, "platform") => (&["nccl-check", "bench-attn"], &["a", "b"]),
        (Work::Trial, _) => (&["debug", "smoke", "ablate", "eval"], &["lr", "data", "seed"]),
    };
    let (first, second) = words;
    let mut pick = |of: &[&'static str]| of[rng.random_range(0..of.len())];
    let (first, second) = (pick(first), pick(second));
    format!("{first}-{second}")
}
