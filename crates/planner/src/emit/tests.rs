use super::*;
use crate::{Gpu, Latent, Moe, Precision, Recompute, Sharding, Task};

fn llama() -> Arch {
    let numbers = serde_json::json!({
        "name": "Llama-3.1-70B", "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8,
        "head_dim": 128, "ffn": 28672, "gated": true, "vocab": 128_256, "tied": false,
    });
    serde_json::from_value(numbers).unwrap()
}

fn cluster() -> Cluster {
    Cluster {
        name: "4xdgx-a100".into(),
        gpu: Gpu {
            name: "A100-SXM4-80GB".into(),
            memory_gb: 80.0,
            hbm_gbps: 2039.0,
            bf16_tflops: 312.0,
            fp8_tflops: None,
            fp4_tflops: None,
            matmul_tflops: None,
            copy_gbps: None,
        },
        nodes: 4,
        gpus_per_node: 8,
        island: 8,
        island_gbps: 300.0,
        pcie_gbps: 25.0,
        nic_gbps: 200.0,
        island_busbw: None,
        nic_busbw: None,
        price_per_gpu_hour: None,
    }
}

fn work() -> Workload {
    Workload {
        task: Task::Pretrain,
        precision: Precision::Bf16,
        seq: 4096,
        global_batch: 64,
        tokens: Some(1e9),
    }
}

fn layout() -> Layout {
    Layout {
        tp: 4,
        pp: 4,
        vp: 1,
        cp: 1,
        ep: 1,
        dp: 2,
        micro_batch: 2,
        sharding: Sharding::Zero3,
        sequence_parallel: true,
        recompute: Recompute::Full,
    }
}

struct Case {
    arch: Arch,
    work: Workload,
    layout: Layout,
}

impl Case {
    fn new() -> Case {
        Case { arch: llama(), work: work(), layout: layout() }
    }

    fn with<T>(&self, write: impl Fn(&Emit<'_>) -> T) -> T {
        write(&Emit {
            model: "llama-3.1-70b",
            arch: &self.arch,
            workload: &self.work,
            cluster: &cluster(),
            layout: &self.layout,
            gpu: "a100",
            step_time_s: 1.3249,
            memory_gb: 61.234,
        })
    }

    fn refused(&self, write: impl Fn(&Emit<'_>) -> Result<Emitted, CanNot>) -> String {
        self.with(write).unwrap_err().to_string()
    }
}

fn has(text: &str, wanted: &[&str]) {
    for want in wanted {
        assert!(
            text.lines().any(|l| l.trim_end_matches(" \\").trim() == *want),
            "{want} in\n{text}"
        );
    }
}

#[test]
fn a_job_file_is_toml_and_says_what_was_planned() {
    let text = Case::new().with(job).text;
    let read: toml::Table = toml::from_str(&text).unwrap();
    assert_eq!(read["nodes"].as_integer(), Some(4));
    assert_eq!(read["gpus_per_node"].as_str(), Some("a100:8"));
    assert_eq!(read["gpu_mem"].as_str(), Some("67GiB"));
    assert_eq!(read["plan"]["zero"].as_integer(), Some(3));
    assert_eq!(read["plan"]["step_time_s"].as_float(), Some(1.3249));
    assert_eq!(read["plan"]["sequence_parallel"].as_bool(), Some(true));
}

#[test]
fn a_job_that_fills_no_node_asks_for_what_it_needs() {
    let mut case = Case::new();
    (case.layout.pp, case.layout.dp) = (1, 1);
    has(&case.with(job).text, &["nodes = 1", "gpus_per_node = \"a100:4\""]);
    (case.layout.tp, case.layout.dp) = (4, 3);
    has(&case.with(job).text, &["gpus = 12"]);
}

#[test]
fn torchtitan_gets_sections_that_it_reads() {
    let case = Case::new();
    let text = case.with(torchtitan).unwrap().text;
    let read: toml::Table = toml::from_str(&text).unwrap();
    let parallel = &read["parallelism"];
    assert_eq!(parallel["data_parallel_shard_degree"].as_integer(), Some(2));
    assert_eq!(parallel["pipeline_parallel_layers_per_stage"].as_integer(), Some(20));
    // 64 sequences over 2 replicas, cut into micro-batches of 2 by the pipeline itself.
    assert_eq!(read["training"]["local_batch_size"].as_integer(), Some(32));
    assert_eq!(read["training"]["steps"].as_integer(), Some(3815));
    assert_eq!(read["model"]["flavor"].as_str(), Some("70B"));
    assert_eq!(read["activation_checkpoint"]["mode"].as_str(), Some("full"));
}

#[test]
fn what_torchtitan_has_no_words_for_is_refused() {
    let mut case = Case::new();
    case.layout.sharding = Sharding::Zero1;
    assert_eq!(case.refused(torchtitan), "torchtitan can't do ZeRO-1: pin --zero 2 or --zero 3");
    case.layout.sharding = Sharding::None;
    assert!(case.refused(torchtitan).contains("--zero 3"));
    case = Case::new();
    case.work.task = Task::Lora { rank: 16 };
    assert!(case.refused(torchtitan).starts_with("torchtitan can't do LoRA"));
    assert!(case.refused(megatron).starts_with("Megatron-LM can't do LoRA"));
    case = Case::new();
    case.arch.hidden = 8000;
    assert!(case.refused(torchtitan).contains("--write megatron"));
}

#[test]
fn megatron_gets_model_and_layout() {
    let mut case = Case::new();
    case.layout.vp = 5;
    case.layout.sharding = Sharding::Zero1;
    let text = case.with(megatron).unwrap().text;
    has(
        &text,
        &[
            "python pretrain_gpt.py",
            "--num-query-groups 8",
            "--num-virtual-stages-per-pipeline-rank 5",
            "--use-distributed-optimizer",
            "--sequence-parallel",
            "--recompute-num-layers 1",
            "--train-iters 3815",
            "--bf16",
        ],
    );
    assert!(!text.contains("num-experts") && !text.contains("fsdp"), "{text}");
    (case.arch.layers, case.layout.pp, case.layout.vp) = (126, 16, 1);
    has(&case.with(megatron).unwrap().text, &["--account-for-loss-in-pipeline-split"]);
    case.arch.layers = 125;
    assert!(case.refused(megatron).contains("125 layers in 16 equal parts"));
}

#[test]
fn megatron_knows_experts_and_latent_attention() {
    let mut case = Case::new();
    case.arch.moe = Some(Moe { experts: 64, topk: 6, ffn: 1408, shared: 2, dense_layers: 1 });
    case.arch.latent =
        Some(Latent { q_rank: 0, kv_rank: 512, rope_dim: 64, nope_dim: 128, value_dim: 128 });
    case.layout.ep = 2;
    let text = case.with(megatron).unwrap().text;
    has(
        &text,
        &[
            "--moe-shared-expert-intermediate-size 2816",
            "--moe-layer-freq '([0]*1+[1]*79)'",
            "--expert-model-parallel-size 2",
            "--expert-tensor-parallel-size 1",
            "--kv-lora-rank 512",
            "--data-parallel-sharding-strategy optim_grads_params",
        ],
    );
    assert!(!text.contains("--q-lora-rank") && !text.contains("--num-query-groups"), "{text}");
}

#[test]
fn deepspeed_gets_json_whose_batches_multiply_up() {
    let mut case = Case::new();
    (case.layout.pp, case.layout.dp) = (1, 8);
    let found = case.with(deepspeed).unwrap();
    let read: serde_json::Value = serde_json::from_str(&found.text).unwrap();
    assert_eq!(read["zero_optimization"]["stage"], 3);
    assert_eq!(read["tensor_parallel"]["autotp_size"], 4);
    assert_eq!(read["gradient_accumulation_steps"], 4);
    assert_eq!(read["train_micro_batch_size_per_gpu"], 2);
    assert_eq!(read["train_batch_size"], 2 * 4 * 8);
    assert!(found.notes.iter().any(|n| n.contains("gradient_checkpointing_enable")));
    case.layout.vp = 2;
    assert_eq!(
        case.refused(deepspeed),
        "DeepSpeed can't do interleaved pipeline stages (vp 2): pin --vp 1"
    );
    let staged = Case::new();
    assert!(staged.refused(deepspeed).contains("with a pipeline: pin --zero 1"));
}

#[test]
fn vllm_gets_one_line_for_each_option() {
    let server = Server {
        model: "my models/one",
        precision: Precision::Fp8,
        tp: 4,
        pp: 1,
        experts: true,
        concurrency: 96,
        context: 3072,
        replicas: 2,
    };
    let found = vllm(&server);
    has(&found.text, &["vllm serve 'my models/one'", "--quantization fp8", "--max-num-seqs 96"]);
    has(&found.text, &["--enable-expert-parallel", "--max-model-len 3072"]);
    assert_eq!(found.notes, ["start 2 of them behind a load balancer"]);
}
