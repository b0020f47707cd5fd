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
    model: &'static str,
    arch: Arch,
    work: Workload,
    layout: Layout,
    nodes: u32,
    memory_gb: f64,
}

impl Case {
    fn new() -> Case {
        Case {
            model: "llama-3.1-70b",
            arch: llama(),
            work: work(),
            layout: layout(),
            nodes: 4,
            memory_gb: 61.234,
        }
    }

    fn with<T>(&self, write: impl Fn(&Emit<'_>) -> T) -> T {
        write(&Emit {
            model: self.model,
            arch: &self.arch,
            workload: &self.work,
            cluster: &Cluster { nodes: self.nodes, ..cluster() },
            layout: &self.layout,
            gpu: "a100",
            step_time_s: 1.3249,
            memory_gb: self.memory_gb,
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
    // 61.2 GB with the twentieth that a trainer can't use: an A100 of 80 GB, and none of 40.
    has(&text, &["gpu_mem = \"65GiB\"    # the plan fills 61.2 GB of a GPU"]);
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
    assert_eq!(read["model"]["hf_assets_path"].as_str(), Some("./assets/hf/Llama-3.1-70B"));
    assert_eq!(read["activation_checkpoint"]["mode"].as_str(), Some("full"));
}

#[test]
fn a_gpu_that_is_filled_is_asked_for_with_less_than_its_name_says() {
    let full = Case { memory_gb: 75.9, ..Case::new() };
    has(&full.with(job).text, &["gpu_mem = \"72GiB\"    # the plan fills 75.9 GB of a GPU"]);
}

#[test]
fn torchtitan_recomputes_what_the_plan_does() {
    for (recompute, mode) in [(Recompute::None, "none"), (Recompute::Selective, "selective")] {
        let mut case = Case::new();
        (case.layout.micro_batch, case.layout.recompute) = (1, recompute);
        (case.layout.tp, case.layout.dp) = (8, 1);
        let read: toml::Table = toml::from_str(&case.with(torchtitan).unwrap().text).unwrap();
        let section = &read["activation_checkpoint"];
        assert_eq!(section["mode"].as_str(), Some(mode));
        let by_operations = section.get("selective_ac_option").and_then(|o| o.as_str());
        assert_eq!(by_operations, (recompute == Recompute::Selective).then_some("op"));
    }
}

#[test]
fn what_a_program_has_no_room_for_is_refused_with_pins_that_do() {
    let mut case = Case::new();
    case.layout.recompute = Recompute::None;
    let e = case.refused(torchtitan);
    assert!(e.starts_with("torchtitan can't do this layout: its software needs "), "{e}");
    assert!(e.contains(" of a GPU that has room for 76.0 GB, "), "{e}");
    assert!(e.contains(" more than is there: pin --tp ") && e.contains("--zero "), "{e}");
    assert!(e.contains("which takes ") && e.ends_with(" a step"), "{e}");
    let e = Case { nodes: 1, ..case }.refused(torchtitan);
    assert!(e.ends_with("take more GPUs, or --write megatron"), "{e}");
}

#[test]
fn a_program_that_is_slower_than_the_plan_says_so() {
    let notes = Case::new().with(torchtitan).unwrap().notes;
    let note = notes.iter().find(|n| n.starts_with("under torchtitan a step takes ")).unwrap();
    assert!(note.ends_with("the plan's 1.32 s and 61.2 GB are those of Megatron-Core"), "{note}");
}

#[test]
fn models_that_only_look_like_a_flavor_of_torchtitan_are_refused() {
    let of = |name: &str| Case { arch: crate::names::find(name).unwrap(), ..Case::new() };
    for name in ["mistral-7b", "llama-2-7b", "llama-2-70b", "qwen2.5-7b"] {
        let e = of(name).refused(torchtitan);
        assert!(e.starts_with(&format!("torchtitan can't do {name}, which is not")), "{e}");
    }
    let numbers = crate::Numbers { layers: 32, hidden: 4096, ..crate::Numbers::default() };
    let e = Case { arch: numbers.arch().unwrap(), ..Case::new() }.refused(torchtitan);
    assert!(e.contains("--write megatron takes any numbers"), "{e}");
}

#[test]
fn torchtitan_is_told_of_no_directory_that_nobody_has() {
    let mut case = Case::new();
    case.arch.name = "my-llama".into();
    let found = case.with(torchtitan).unwrap();
    assert!(!found.text.contains("hf_assets_path"), "{}", found.text);
    assert!(found.notes[0].ends_with("the directory with the tokenizer of my-llama"));
    case.model = "/models/mine/config.json";
    has(&case.with(torchtitan).unwrap().text, &["hf_assets_path = \"/models/mine\""]);
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
    // A dense MLP can be made again as a whole only.
    case.layout.recompute = Recompute::Selective;
    let text = case.with(megatron).unwrap().text;
    has(&text, &["--recompute-granularity selective", "--recompute-modules mlp"]);
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
    case.layout.recompute = Recompute::Selective;
    let text = case.with(megatron).unwrap().text;
    has(
        &text,
        &[
            "--moe-shared-expert-intermediate-size 2816",
            "--moe-layer-freq '([0]*1+[1]*79)'",
            "--expert-model-parallel-size 2",
            "--expert-tensor-parallel-size 1",
            "--kv-lora-rank 512",
            "--recompute-modules moe_act layernorm mla_up_proj",
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
    case.layout.recompute = Recompute::Selective;
    assert_eq!(
        case.refused(deepspeed),
        "DeepSpeed can't do selective recomputation: pin --recompute full, or --recompute none"
    );
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
    has(&found.text, &["--gpu-memory-utilization 0.92"]);
    assert_eq!(found.notes, ["start 2 of them behind a load balancer"]);
}
