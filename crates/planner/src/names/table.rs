//! Shapes, from the models' own config.json; GPT-3's and MT-NLG's from their papers.

use super::Named;
use crate::family::Shape;
use crate::{Latent, Moe, Window};

type Attention = (u32, u32, u64);

/// Layers, hidden, (heads, their keys' heads, width of a head), MLP, vocabulary.
const fn m(
    name: &'static str,
    family: &'static str,
    layers: u32,
    hidden: u64,
    (heads, kv_heads, head_dim): Attention,
    ffn: u64,
    vocab: u64,
) -> Named {
    let shape = Shape {
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        ffn,
        vocab,
        tied: false,
        positions: 0,
        window: None,
        moe: None,
        latent: None,
    };
    Named { name, family, shape }
}

/// As the first GPT: all heads alike, an MLP four times as wide, tied.
const fn gpt(
    name: &'static str,
    family: &'static str,
    layers: u32,
    hidden: u64,
    heads: u32,
    vocab: u64,
    positions: u64,
) -> Named {
    let mut n =
        m(name, family, layers, hidden, (heads, heads, hidden / heads as u64), 4 * hidden, vocab);
    n.shape.tied = true;
    n.shape.positions = positions;
    n
}

impl Named {
    const fn tied(mut self) -> Named {
        self.shape.tied = true;
        self
    }

    /// Experts, how many a token visits, their width, those it always visits, layers without experts.
    const fn moe(
        mut self,
        experts: u32,
        topk: u32,
        ffn: u64,
        shared: u32,
        dense_layers: u32,
    ) -> Named {
        self.shape.moe = Some(Moe { experts, topk, ffn, shared, dense_layers });
        self
    }

    const fn latent(mut self, q_rank: u64) -> Named {
        self.shape.latent =
            Some(Latent { q_rank, kv_rank: 512, rope_dim: 64, nope_dim: 128, value_dim: 128 });
        self
    }

    const fn window(mut self, tokens: u64, layers: u32) -> Named {
        self.shape.window = Some(Window { tokens, layers });
        self
    }
}

pub fn all() -> &'static [Named] {
    ALL
}

#[rustfmt::skip]
const ALL: &[Named] = &[
    m("llama-7b", "llama", 32, 4096, (32, 32, 128), 11008, 32000),
    m("llama-13b", "llama", 40, 5120, (40, 40, 128), 13824, 32000),
    m("llama-33b", "llama", 60, 6656, (52, 52, 128), 17920, 32000),
    m("llama-65b", "llama", 80, 8192, (64, 64, 128), 22016, 32000),
    m("llama-2-7b", "llama", 32, 4096, (32, 32, 128), 11008, 32000),
    m("llama-2-13b", "llama", 40, 5120, (40, 40, 128), 13824, 32000),
    m("llama-2-70b", "llama", 80, 8192, (64, 8, 128), 28672, 32000),
    m("codellama-34b", "llama", 48, 8192, (64, 8, 128), 22016, 32000),
    m("llama-3-8b", "llama", 32, 4096, (32, 8, 128), 14336, 128_256),
    m("llama-3-70b", "llama", 80, 8192, (64, 8, 128), 28672, 128_256),
    m("llama-3.1-8b", "llama", 32, 4096, (32, 8, 128), 14336, 128_256),
    m("llama-3.1-70b", "llama", 80, 8192, (64, 8, 128), 28672, 128_256),
    m("llama-3.1-405b", "llama", 126, 16384, (128, 8, 128), 53248, 128_256),
    m("llama-3.2-1b", "llama", 16, 2048, (32, 8, 64), 8192, 128_256).tied(),
    m("llama-3.2-3b", "llama", 28, 3072, (24, 8, 128), 8192, 128_256).tied(),
    m("llama-3.3-70b", "llama", 80, 8192, (64, 8, 128), 28672, 128_256),
    m("llama-3.1-nemotron-70b", "llama", 80, 8192, (64, 8, 128), 28672, 128_256),
    m("llama-4-scout", "llama4_text", 48, 5120, (40, 8, 128), 16384, 202_048).moe(16, 1, 8192, 1, 0).window(8192, 36),
    m("llama-4-maverick", "llama4_text", 48, 5120, (40, 8, 128), 16384, 202_048).moe(128, 1, 8192, 1, 24).window(8192, 36),
    m("tinyllama-1.1b", "llama", 22, 2048, (32, 4, 64), 5632, 32000),
    m("smollm2-135m", "llama", 30, 576, (9, 3, 64), 1536, 49152).tied(),
    m("smollm2-360m", "llama", 32, 960, (15, 5, 64), 2560, 49152).tied(),
    m("smollm2-1.7b", "llama", 24, 2048, (32, 32, 64), 8192, 49152).tied(),
    m("smollm3-3b", "smollm3", 36, 2048, (16, 4, 128), 11008, 128_256).tied(),
    m("yi-6b", "llama", 32, 4096, (32, 4, 128), 11008, 64000),
    m("yi-34b", "llama", 60, 7168, (56, 8, 128), 20480, 64000),

    m("qwen2-0.5b", "qwen2", 24, 896, (14, 2, 64), 4864, 151_936).tied(),
    m("qwen2-1.5b", "qwen2", 28, 1536, (12, 2, 128), 8960, 151_936).tied(),
    m("qwen2-7b", "qwen2", 28, 3584, (28, 4, 128), 18944, 152_064),
    m("qwen2-72b", "qwen2", 80, 8192, (64, 8, 128), 29568, 152_064),
    m("qwen2-57b-a14b", "qwen2_moe", 28, 3584, (28, 4, 128), 18944, 151_936).moe(64, 8, 2560, 8, 0),
    m("qwen2.5-0.5b", "qwen2", 24, 896, (14, 2, 64), 4864, 151_936).tied(),
    m("qwen2.5-1.5b", "qwen2", 28, 1536, (12, 2, 128), 8960, 151_936).tied(),
    m("qwen2.5-3b", "qwen2", 36, 2048, (16, 2, 128), 11008, 151_936).tied(),
    m("qwen2.5-7b", "qwen2", 28, 3584, (28, 4, 128), 18944, 152_064),
    m("qwen2.5-14b", "qwen2", 48, 5120, (40, 8, 128), 13824, 152_064),
    m("qwen2.5-32b", "qwen2", 64, 5120, (40, 8, 128), 27648, 152_064),
    m("qwen2.5-72b", "qwen2", 80, 8192, (64, 8, 128), 29568, 152_064),
    m("qwq-32b", "qwen2", 64, 5120, (40, 8, 128), 27648, 152_064),
    m("qwen3-0.6b", "qwen3", 28, 1024, (16, 8, 128), 3072, 151_936).tied(),
    m("qwen3-1.7b", "qwen3", 28, 2048, (16, 8, 128), 6144, 151_936).tied(),
    m("qwen3-4b", "qwen3", 36, 2560, (32, 8, 128), 9728, 151_936).tied(),
    m("qwen3-8b", "qwen3", 36, 4096, (32, 8, 128), 12288, 151_936),
    m("qwen3-14b", "qwen3", 40, 5120, (40, 8, 128), 17408, 151_936),
    m("qwen3-32b", "qwen3", 64, 5120, (64, 8, 128), 25600, 151_936),
    m("qwen3-30b-a3b", "qwen3_moe", 48, 2048, (32, 4, 128), 6144, 151_936).moe(128, 8, 768, 0, 0),
    m("qwen3-235b-a22b", "qwen3_moe", 94, 4096, (64, 4, 128), 12288, 151_936).moe(128, 8, 1536, 0, 0),
    m("qwen3-coder-480b-a35b", "qwen3_moe", 62, 6144, (96, 8, 128), 8192, 151_936).moe(160, 8, 2560, 0, 0),

    m("mistral-7b", "mistral", 32, 4096, (32, 8, 128), 14336, 32000),
    m("mistral-nemo-12b", "mistral", 40, 5120, (32, 8, 128), 14336, 131_072),
    m("mistral-small-22b", "mistral", 56, 6144, (48, 8, 128), 16384, 32768),
    m("mistral-small-24b", "mistral", 40, 5120, (32, 8, 128), 32768, 131_072),
    m("codestral-22b", "mistral", 56, 6144, (48, 8, 128), 16384, 32768),
    m("mistral-large-123b", "mistral", 88, 12288, (96, 8, 128), 28672, 32768),
    m("mixtral-8x7b", "mixtral", 32, 4096, (32, 8, 128), 14336, 32000).moe(8, 2, 14336, 0, 0),
    m("mixtral-8x22b", "mixtral", 56, 6144, (48, 8, 128), 16384, 32000).moe(8, 2, 16384, 0, 0),

    m("gemma-2b", "gemma", 18, 2048, (8, 1, 256), 16384, 256_000).tied(),
    m("gemma-7b", "gemma", 28, 3072, (16, 16, 256), 24576, 256_000).tied(),
    m("gemma-2-2b", "gemma2", 26, 2304, (8, 4, 256), 9216, 256_000).tied().window(4096, 13),
    m("gemma-2-9b", "gemma2", 42, 3584, (16, 8, 256), 14336, 256_000).tied().window(4096, 21),
    m("gemma-2-27b", "gemma2", 46, 4608, (32, 16, 128), 36864, 256_000).tied().window(4096, 23),
    m("gemma-3-270m", "gemma3_text", 18, 640, (4, 1, 256), 2048, 262_144).tied().window(512, 15),
    m("gemma-3-1b", "gemma3_text", 26, 1152, (4, 1, 256), 6912, 262_144).tied().window(512, 22),
    m("gemma-3-4b", "gemma3_text", 34, 2560, (8, 4, 256), 10240, 262_208).tied().window(1024, 29),
    m("gemma-3-12b", "gemma3_text", 48, 3840, (16, 8, 256), 15360, 262_208).tied().window(1024, 40),
    m("gemma-3-27b", "gemma3_text", 62, 5376, (32, 16, 128), 21504, 262_208).tied().window(1024, 52),

    m("phi-2", "phi", 32, 2560, (32, 32, 80), 10240, 51200),
    m("phi-3-mini", "phi3", 32, 3072, (32, 32, 96), 8192, 32064),
    m("phi-3-medium", "phi3", 40, 5120, (40, 10, 128), 17920, 32064),
    m("phi-3.5-mini", "phi3", 32, 3072, (32, 32, 96), 8192, 32064),
    m("phi-3.5-moe", "phimoe", 32, 4096, (32, 8, 128), 6400, 32064).moe(16, 2, 6400, 0, 0),
    m("phi-4", "phi3", 40, 5120, (40, 10, 128), 17920, 100_352),
    m("phi-4-mini", "phi3", 32, 3072, (24, 8, 128), 8192, 200_064).tied(),

    m("deepseek-llm-7b", "llama", 30, 4096, (32, 32, 128), 11008, 102_400),
    m("deepseek-llm-67b", "llama", 95, 8192, (64, 8, 128), 22016, 102_400),
    m("deepseek-v2-lite", "deepseek_v2", 27, 2048, (16, 16, 128), 10944, 102_400).latent(0).moe(64, 6, 1408, 2, 1),
    m("deepseek-v2", "deepseek_v2", 60, 5120, (128, 128, 128), 12288, 102_400).latent(1536).moe(160, 6, 1536, 2, 1),
    m("deepseek-v2.5", "deepseek_v2", 60, 5120, (128, 128, 128), 12288, 102_400).latent(1536).moe(160, 6, 1536, 2, 1),
    m("deepseek-v3", "deepseek_v3", 61, 7168, (128, 128, 128), 18432, 129_280).latent(1536).moe(256, 8, 2048, 1, 3),
    m("deepseek-v3.1", "deepseek_v3", 61, 7168, (128, 128, 128), 18432, 129_280).latent(1536).moe(256, 8, 2048, 1, 3),
    m("deepseek-r1", "deepseek_v3", 61, 7168, (128, 128, 128), 18432, 129_280).latent(1536).moe(256, 8, 2048, 1, 3),
    m("deepseek-r1-distill-llama-8b", "llama", 32, 4096, (32, 8, 128), 14336, 128_256),
    m("deepseek-r1-distill-llama-70b", "llama", 80, 8192, (64, 8, 128), 28672, 128_256),
    m("deepseek-r1-distill-qwen-7b", "qwen2", 28, 3584, (28, 4, 128), 18944, 152_064),
    m("deepseek-r1-distill-qwen-14b", "qwen2", 48, 5120, (40, 8, 128), 13824, 152_064),
    m("deepseek-r1-distill-qwen-32b", "qwen2", 64, 5120, (40, 8, 128), 27648, 152_064),
    m("kimi-k2", "kimi_k2", 61, 7168, (64, 64, 128), 18432, 163_840).latent(1536).moe(384, 8, 2048, 1, 1),
    m("glm-4.5", "glm4_moe", 92, 5120, (96, 8, 128), 12288, 151_552).moe(160, 8, 1536, 1, 3),
    m("glm-4.5-air", "glm4_moe", 46, 4096, (96, 8, 128), 10944, 151_552).moe(128, 8, 1408, 1, 1),
    m("grok-1", "grok-1", 64, 6144, (48, 8, 128), 32768, 131_072).tied().moe(8, 2, 32768, 0, 0),

    m("gpt-oss-20b", "gpt_oss", 24, 2880, (64, 8, 64), 2880, 201_088).moe(32, 4, 2880, 0, 0).window(128, 12),
    m("gpt-oss-120b", "gpt_oss", 36, 2880, (64, 8, 64), 2880, 201_088).moe(128, 4, 2880, 0, 0).window(128, 18),

    m("olmo-1b", "olmo", 16, 2048, (16, 16, 128), 8192, 50304).tied(),
    m("olmo-7b", "olmo", 32, 4096, (32, 32, 128), 11008, 50304),
    m("olmo-2-1b", "olmo2", 16, 2048, (16, 16, 128), 8192, 100_352),
    m("olmo-2-7b", "olmo2", 32, 4096, (32, 32, 128), 11008, 100_352),
    m("olmo-2-13b", "olmo2", 40, 5120, (40, 40, 128), 13824, 100_352),
    m("olmo-2-32b", "olmo2", 64, 5120, (40, 8, 128), 27648, 100_352),
    m("olmo-3-7b", "olmo3", 32, 4096, (32, 32, 128), 11008, 100_278).window(4096, 24),
    m("olmo-3-32b", "olmo3", 64, 5120, (40, 8, 128), 27648, 100_278).window(4096, 48),
    m("olmoe-1b-7b", "olmoe", 16, 2048, (16, 16, 128), 1024, 50304).moe(64, 8, 1024, 0, 0),

    gpt("gpt-2", "gpt2", 12, 768, 12, 50257, 1024),
    gpt("gpt-2-medium", "gpt2", 24, 1024, 16, 50257, 1024),
    gpt("gpt-2-large", "gpt2", 36, 1280, 20, 50257, 1024),
    gpt("gpt-2-xl", "gpt2", 48, 1600, 25, 50257, 1024),
    gpt("gpt-3-125m", "gpt2", 12, 768, 12, 50257, 2048),
    gpt("gpt-3-350m", "gpt2", 24, 1024, 16, 50257, 2048),
    gpt("gpt-3-760m", "gpt2", 24, 1536, 16, 50257, 2048),
    gpt("gpt-3-1.3b", "gpt2", 24, 2048, 16, 50257, 2048),
    gpt("gpt-3-2.7b", "gpt2", 32, 2560, 32, 50257, 2048),
    gpt("gpt-3-6.7b", "gpt2", 32, 4096, 32, 50257, 2048),
    gpt("gpt-3-13b", "gpt2", 40, 5120, 40, 50257, 2048),
    gpt("gpt-3-175b", "gpt2", 96, 12288, 96, 50257, 2048),
    gpt("mt-nlg-530b", "gpt2", 105, 20480, 128, 51200, 2048),
    m("gpt-j-6b", "gptj", 28, 4096, (16, 16, 256), 16384, 50400),
    m("gpt-neox-20b", "gpt_neox", 44, 6144, (64, 64, 96), 24576, 50432),
    m("pythia-1.4b", "gpt_neox", 24, 2048, (16, 16, 128), 8192, 50304),
    m("pythia-6.9b", "gpt_neox", 32, 4096, (32, 32, 128), 16384, 50432),
    m("pythia-12b", "gpt_neox", 36, 5120, (40, 40, 128), 20480, 50688),

    gpt("bloom-560m", "bloom", 24, 1024, 16, 250_880, 0),
    gpt("bloom-1b1", "bloom", 24, 1536, 16, 250_880, 0),
    gpt("bloom-1b7", "bloom", 24, 2048, 16, 250_880, 0),
    gpt("bloom-3b", "bloom", 30, 2560, 32, 250_880, 0),
    gpt("bloom-7b1", "bloom", 30, 4096, 32, 250_880, 0),
    gpt("bloom-176b", "bloom", 70, 14336, 112, 250_880, 0),

    gpt("opt-125m", "opt", 12, 768, 12, 50272, 2048),
    gpt("opt-1.3b", "opt", 24, 2048, 32, 50272, 2048),
    gpt("opt-2.7b", "opt", 32, 2560, 32, 50272, 2048),
    gpt("opt-6.7b", "opt", 32, 4096, 32, 50272, 2048),
    gpt("opt-13b", "opt", 40, 5120, 40, 50272, 2048),
    gpt("opt-30b", "opt", 48, 7168, 56, 50272, 2048),
    gpt("opt-66b", "opt", 64, 9216, 72, 50272, 2048),
    gpt("opt-175b", "opt", 96, 12288, 96, 50272, 2048),

    m("falcon-7b", "falcon", 32, 4544, (71, 1, 64), 18176, 65024).tied(),
    m("falcon-11b", "falcon", 60, 4096, (32, 8, 128), 16384, 65024),
    m("falcon-40b", "falcon", 60, 8192, (128, 8, 64), 32768, 65024).tied(),
    m("falcon-180b", "falcon", 80, 14848, (232, 8, 64), 59392, 65024).tied(),
    m("falcon3-7b", "llama", 28, 3072, (12, 4, 256), 23040, 131_072),
    m("falcon3-10b", "llama", 40, 3072, (12, 4, 256), 23040, 131_072),

    m("nemotron-3-8b", "nemotron", 32, 4096, (32, 32, 128), 16384, 256_000),
    m("nemotron-4-15b", "nemotron", 32, 6144, (48, 8, 128), 24576, 256_000),
    m("nemotron-4-340b", "nemotron", 96, 18432, (96, 8, 192), 73728, 256_000),
    m("minitron-4b", "nemotron", 32, 3072, (24, 8, 128), 9216, 256_000),
    m("minitron-8b", "nemotron", 32, 4096, (48, 8, 128), 16384, 256_000),

    m("command-r-35b", "cohere", 40, 8192, (64, 64, 128), 22528, 256_000).tied(),
    m("command-r-plus-104b", "cohere", 64, 12288, (96, 8, 128), 33792, 256_000).tied(),
    m("starcoder2-3b", "starcoder2", 30, 3072, (24, 2, 128), 12288, 49152).tied().window(4096, 30),
    m("starcoder2-7b", "starcoder2", 32, 4608, (36, 4, 128), 18432, 49152).tied().window(4096, 32),
    m("starcoder2-15b", "starcoder2", 40, 6144, (48, 4, 128), 24576, 49152).tied().window(4096, 40),
];
