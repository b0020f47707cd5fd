use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn read(config: Value) -> Result<Arch, ConfigError> {
    from_config(&config.to_string())
}

fn says(config: Value) -> String {
    read(config).unwrap_err().to_string()
}

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false,
        "rope_theta": 500000.0, "max_position_embeddings": 8192,
    })
}

fn with(key: &str, value: Value) -> Value {
    let mut c = llama();
    c[key] = value;
    c
}

fn same_as(config: Value, name: &str) {
    let mut read = read(config).unwrap();
    let named = crate::names::find(name).unwrap();
    read.name.clone_from(&named.name);
    assert_eq!(read, named);
}

#[test]
fn a_config_and_a_name_are_one_model() {
    same_as(llama(), "llama-3-8b");
    same_as(
        json!({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
            "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
            "sliding_window": null, "tie_word_embeddings": false}),
        "mixtral-8x7b",
    );
    same_as(
        json!({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
            "n_ctx": 1024, "vocab_size": 50257, "n_inner": null}),
        "gpt-2",
    );
    same_as(
        json!({"model_type": "opt", "hidden_size": 768, "num_attention_heads": 12, "ffn_dim": 3072,
            "num_hidden_layers": 12, "max_position_embeddings": 2048, "vocab_size": 50272,
            "word_embed_proj_dim": 768}),
        "opt-125m",
    );
}

#[test]
fn experts_and_latent_attention_are_read() {
    same_as(
        json!({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
            "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
            "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1,
            "vocab_size": 129280, "tie_word_embeddings": false, "num_nextn_predict_layers": 1}),
        "deepseek-v3",
    );
    same_as(
        json!({"model_type": "qwen2_moe", "hidden_size": 3584, "intermediate_size": 18944,
            "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28,
            "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560,
            "shared_expert_intermediate_size": 20480, "decoder_sparse_step": 1,
            "vocab_size": 151936, "use_sliding_window": false, "sliding_window": 65536}),
        "qwen2-57b-a14b",
    );
}

#[test]
fn the_text_part_of_a_model_that_sees_is_read() {
    same_as(
        json!({"model_type": "llama4", "text_config": {"model_type": "llama4_text",
            "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
            "num_hidden_layers": 48, "num_local_experts": 128, "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2, "attention_chunk_size": 8192, "vocab_size": 202048}}),
        "llama-4-maverick",
    );
    same_as(
        json!({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
            "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024}, "vision_config": {"model_type": "siglip_vision_model"}}),
        "gemma-3-4b",
    );
}

#[test]
fn windows_are_read_in_both_spellings() {
    let types: Vec<&str> =
        (0..24).map(|i| ["sliding_attention", "full_attention"][i % 2]).collect();
    let c = json!({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 24,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
        "layer_types": types, "vocab_size": 201088});
    same_as(c, "gpt-oss-20b");
    let mistral = json!({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "sliding_window": 4096, "vocab_size": 32000});
    assert_eq!(read(mistral).unwrap().window, Some(Window { tokens: 4096, layers: 32 }));
}

#[test]
fn falcon_says_its_heads_in_three_ways() {
    let seven = json!({"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71,
        "num_hidden_layers": 32, "multi_query": true, "new_decoder_architecture": false,
        "vocab_size": 65024});
    same_as(seven, "falcon-7b");
    let forty = json!({"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128,
        "num_kv_heads": 8, "num_hidden_layers": 60, "multi_query": true,
        "new_decoder_architecture": true, "vocab_size": 65024});
    same_as(forty, "falcon-40b");
}

#[test]
fn other_kinds_of_models_are_named() {
    assert_eq!(
        says(json!({"model_type": "bert", "hidden_size": 768})),
        "'bert' is an encoder, which writes nothing; only language models that write token after token are planned"
    );
    assert!(
        says(json!({"model_type": "clip", "text_config": {}}))
            .starts_with("'clip' is a vision model;")
    );
    assert!(
        says(json!({"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.6.0"}))
            .starts_with("'UNet2DConditionModel' is part of a diffusion pipeline;")
    );
    assert!(says(json!({"model_type": "mamba2"})).contains("state-space"));
}

#[test]
fn nonsense_is_one_clear_sentence() {
    assert_eq!(
        says(json!([1])),
        "the config is JSON, but not an object; give a model's Hugging Face config.json"
    );
    assert!(says(json!({"dim": 4096})).starts_with("the config has no model_type;"));
    assert_eq!(
        says(json!({"model_type": "lama"})),
        "model_type 'lama' is not known (did you mean 'llama'?); give the model's numbers instead"
    );
    assert!(
        from_config("{\"hidden_size\": NaN}")
            .unwrap_err()
            .to_string()
            .starts_with("the config is not JSON:")
    );
    let whole = |v: &str, key: &str, high: &str| {
        format!("{key} is {v}, not a whole number from 1 to {high}")
    };
    for (value, shown) in [
        (json!(0), "0"),
        (json!(-3), "-3"),
        (json!(1.5), "1.5"),
        (json!("32"), "\"32\""),
        (json!(1e300), "1e+300"),
    ] {
        assert_eq!(
            says(with("num_hidden_layers", value)),
            whole(shown, "num_hidden_layers", "10,000")
        );
    }
    assert_eq!(
        says(with("num_attention_heads", json!(30))),
        "hidden_size 4096 does not divide by 30 heads, and there is no head_dim"
    );
    assert_eq!(
        says(with("num_key_value_heads", json!(5))),
        "32 heads do not divide by 5 key-value heads"
    );
    assert_eq!(
        says(with("num_key_value_heads", json!(0))),
        "key-value heads is 0, not a whole number from 1 to 100,000"
    );
    let mut gone = llama();
    gone.as_object_mut().unwrap().remove("vocab_size");
    assert_eq!(says(gone), "vocab_size is missing, and a 'llama' config needs it");
}

#[test]
fn a_config_is_called_by_the_last_part_of_its_path() {
    let name = |path: &str| read(with("_name_or_path", json!(path))).unwrap().name;
    assert_eq!(name("meta-llama/Meta-Llama-3-8B"), "Meta-Llama-3-8B");
    assert_eq!(name("/models/mine/"), "mine");
    assert_eq!(name(""), "llama");
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(|n| json!(n)),
        any::<i64>().prop_map(|n| json!(n)),
        any::<f64>().prop_map(|n| json!(n)),
        (0..300_u64).prop_map(|n| json!(n)),
        Just(json!(null)),
        Just(json!("32")),
        Just(json!([])),
    ]
}

proptest! {
    #[test]
    fn whatever_a_config_says_it_is_a_model_or_a_sentence(
        kind in 0..FAMILIES.len(),
        values in proptest::collection::vec(number(), 16),
    ) {
        let keys = [LAYER_KEYS, HIDDEN_KEYS, HEAD_KEYS, KV_KEYS, FFN_KEYS, EXPERT_KEYS, TOPK_KEYS, POSITION_KEYS];
        let more = [
            "vocab_size", "head_dim", "kv_lora_rank", "sliding_window", "first_k_dense_replace",
            "decoder_sparse_step", "shared_expert_intermediate_size", "sliding_window_pattern",
        ];
        let all = keys.iter().map(|k| k[0]).chain(more);
        let mut config = json!({"model_type": FAMILIES[kind].kind});
        for (key, value) in all.zip(values) {
            config[key] = value;
        }
        match read(config) {
            Ok(arch) => prop_assert!(arch.params().is_finite() && arch.params() > 0.0),
            Err(e) => prop_assert!(!e.to_string().contains('\n')),
        }
    }

    #[test]
    fn whatever_is_written_is_read_or_refused(text in ".{0,80}") {
        let _ = from_config(&text);
        let _ = crate::names::find(&text);
        let _ = crate::catalogue::find(&text);
        let _ = crate::catalogue::gpu(&text);
        let _ = crate::catalogue::from_toml(&text);
    }
}
