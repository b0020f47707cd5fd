//! What must hold of every estimate, and what published machines and models must come out as.

use proptest::prelude::*;
use tutti_planner::{
    Arch, Cluster, Gpu, Latent, Layout, Moe, Part, Precision, Recompute, Setup, Sharding, Stack,
    StepTime, Task, Window, Workload, estimate, legal, memory, names, step_time,
};

const GB: f64 = (1_u64 << 30) as f64;

fn gpu(name: &str, memory_gb: f64, hbm_gbps: f64, bf16_tflops: f64) -> Gpu {
    Gpu {
        name: name.to_owned(),
        memory_gb,
        hbm_gbps,
        bf16_tflops,
        fp8_tflops: (bf16_tflops > 500.0).then_some(2.0 * bf16_tflops),
        fp4_tflops: None,
        matmul_tflops: None,
        copy_gbps: None,
    }
}

fn cluster(gpu: Gpu, nodes: u32) -> Cluster {
    Cluster {
        name: "test".to_owned(),
        gpu,
        nodes,
        gpus_per_node: 8,
        island: 8,
        island_gbps: 300.0,
        pcie_gbps: 26.0,
        nic_gbps: 200.0,
        island_busbw: None,
        nic_busbw: None,
        price_per_gpu_hour: None,
    }
}

fn a100(nodes: u32) -> Cluster {
    cluster(gpu("A100-SXM4-80GB", 80.0, 2039.0, 312.0), nodes)
}

fn dense(layers: u32, hidden: u64, heads: u32, kv_heads: u32, ffn: u64, gated: bool) -> Arch {
    Arch {
        name: "test".to_owned(),
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim: hidden / u64::from(heads),
        ffn,
        gated,
        vocab: 51200,
        tied: !gated,
        moe: None,
        latent: None,
        window: None,
        extra: 0.0,
    }
}

fn gpt3() -> Arch {
    dense(96, 12288, 96, 96, 49152, false)
}

fn llama70() -> Arch {
    Arch { vocab: 32000, ..dense(80, 8192, 64, 8, 28672, true) }
}

fn deepseek() -> Arch {
    let latent = Latent { q_rank: 1536, kv_rank: 512, rope_dim: 64, nope_dim: 128, value_dim: 128 };
    Arch {
        name: "DeepSeek-V3".to_owned(),
        vocab: 129280,
        head_dim: 128,
        moe: Some(Moe { experts: 256, topk: 8, ffn: 2048, shared: 1, dense_layers: 3 }),
        latent: Some(latent),
        ..dense(61, 7168, 128, 128, 18432, true)
    }
}

fn workload(task: Task, seq: u64, global_batch: u64) -> Workload {
    Workload { task, precision: Precision::Bf16, seq, global_batch, tokens: None }
}

fn layout(tp: u32, pp: u32, vp: u32, dp: u32, micro_batch: u64) -> Layout {
    Layout {
        tp,
        pp,
        vp,
        cp: 1,
        ep: 1,
        dp,
        micro_batch,
        sharding: Sharding::Zero1,
        sequence_parallel: tp > 1,
        recompute: Recompute::None,
    }
}

fn part(time: &StepTime, part: Part) -> f64 {
    time.parts.iter().filter(|(p, _)| *p == part).map(|(_, s)| s).sum()
}

fn seconds(arch: &Arch, workload: &Workload, cluster: &Cluster, layout: &Layout) -> f64 {
    step_time(&Setup { arch, workload, cluster, layout, stack: Stack::Current }).total()
}

/// Useful FLOPs of a step, causal attention counted by half, over what the GPUs could do.
fn mfu(
    arch: &Arch,
    workload: &Workload,
    cluster: &Cluster,
    layout: &Layout,
    per_weight: f64,
) -> f64 {
    let tokens = (workload.seq * workload.global_batch) as f64;
    let wide = f64::from(arch.heads) * arch.head_dim as f64;
    let weights =
        arch.active_params() - arch.embedding_params() * if arch.tied { 0.0 } else { 1.0 };
    let attention = f64::from(arch.layers) * workload.seq as f64 * wide;
    let flops = tokens * per_weight * (weights + attention);
    let peak = f64::from(layout.gpus()) * cluster.gpu.bf16_tflops * 1e12;
    flops / (seconds(arch, workload, cluster, layout) * peak)
}

#[test]
fn gpt3_on_a_thousand_a100s_is_as_fast_as_anybody_has_seen_and_no_faster() {
    let cluster = a100(128);
    let work = workload(Task::Pretrain, 2048, 1536);
    let mut best = 0.0_f64;
    for (tp, pp, vp, dp) in [
        (8, 8, 12, 16),
        (4, 16, 6, 16),
        (8, 16, 6, 8),
        (2, 32, 3, 16),
        (4, 8, 12, 32),
        (8, 4, 24, 32),
    ] {
        for micro_batch in [1, 2, 4] {
            let layout = layout(tp, pp, vp, dp, micro_batch);
            if legal(&gpt3(), &work, &cluster, &layout).is_ok() {
                best = best.max(mfu(&gpt3(), &work, &cluster, &layout, 6.0));
            }
        }
    }
    assert!((0.42..0.57).contains(&best), "{best}");
}

#[test]
fn lora_is_no_faster_than_its_products_allow() {
    let cluster = a100(2);
    let work = workload(Task::Lora { rank: 16 }, 4096, 32);
    for (tp, pp, vp) in [(4, 4, 5), (2, 8, 5), (8, 2, 8), (8, 1, 1)] {
        for micro_batch in [1, 2] {
            let layout = layout(tp, pp, vp, 16 / (tp * pp), micro_batch);
            let share = mfu(&llama70(), &work, &cluster, &layout, 4.0);
            assert!((0.3..0.57).contains(&share), "{layout:?} {share}");
        }
    }
    let full = workload(Task::Finetune, 4096, 32);
    let layout = layout(4, 4, 5, 1, 1);
    let ratio = seconds(&llama70(), &work, &cluster, &layout)
        / seconds(&llama70(), &full, &cluster, &layout);
    assert!((0.55..0.8).contains(&ratio), "{ratio}");
}

#[test]
fn planning_and_prediction_say_the_same() {
    let mut nvl72 = cluster(gpu("GB200-NVL72", 186.0, 8000.0, 2500.0), 64);
    nvl72 = Cluster { gpus_per_node: 4, island: 72, island_gbps: 900.0, nic_gbps: 400.0, ..nvl72 };
    nvl72.gpu.fp4_tflops = Some(10000.0);
    let work = Workload { precision: Precision::Mxfp8, ..workload(Task::Pretrain, 4096, 4096) };
    let layout = Layout { ep: 64, recompute: Recompute::Selective, ..layout(1, 4, 4, 64, 1) };
    let planned = seconds(&deepseek(), &work, &nvl72, &layout);
    let table = "precision,id,framework,published,accelerator,gpu_mem_gb,gpus_per_node,net_gbps_per_gpu,model,kind,\
        layers,hidden,heads,ffn,gated_mlp,vocab,experts,topk,seq_len,global_batch,micro_batch,gpus,tp,pp,vp,ep,dp,sharding,\
        recompute\n\
        mxfp8,R1,Megatron-Bridge/Megatron-Core,26.08,GB200-NVL72-186GB,186,4,400,DeepSeek-V3,moe,61,7168,128,2048,1,129280,\
        256,8,4096,4096,1,256,1,4,4,64,64,distributed_optimizer(zero1),selective\n";
    let predicted = tutti_planner::predict::predict(table).unwrap();
    assert_eq!(predicted[0].error, None);
    let seen = predicted[0].step_time_s.unwrap();
    assert!((seen / planned - 1.0).abs() < 1e-9, "{seen} {planned}");
    // Measured: 13.3 s.
    assert!((seen / 13.34 - 1.0).abs() < 0.15, "{seen}");
}

#[test]
fn a_small_model_on_one_h200_is_what_was_measured() {
    // docs/benchmarks.md: PyTorch with --compile, 385,366 tokens/s.
    let mut h200 = gpu("H200-SXM5-141GB", 141.0, 4800.0, 989.4);
    h200.matmul_tflops = Some(800.0);
    h200.copy_gbps = Some(4272.0);
    let one = Cluster { gpus_per_node: 1, island: 1, ..cluster(h200, 1) };
    let arch = Arch { vocab: 256, tied: true, ..dense(12, 1024, 16, 16, 3072, true) };
    let work = workload(Task::Pretrain, 1024, 16);
    let layout = Layout { sharding: Sharding::None, ..layout(1, 1, 1, 1, 16) };
    let setup = Setup {
        arch: &arch,
        workload: &work,
        cluster: &one,
        layout: &layout,
        stack: Stack::Compiled,
    };
    let speed = 16.0 * 1024.0 / step_time(&setup).total();
    assert!((speed / 385_366.0 - 1.0).abs() < 0.1, "{speed}");
}

#[test]
fn a_gpu_nobody_knows_is_planned_by_its_peaks() {
    let work = workload(Task::Pretrain, 4096, 64);
    let layout = layout(8, 1, 1, 1, 1);
    let known = seconds(
        &llama70(),
        &work,
        &cluster(gpu("H100-SXM5-80GB", 80.0, 3350.0, 989.0), 1),
        &layout,
    );
    let unknown =
        seconds(&llama70(), &work, &cluster(gpu("X9000", 80.0, 3350.0, 989.0), 1), &layout);
    assert!((0.7..1.4).contains(&(unknown / known)), "{unknown} {known}");
}

#[test]
fn what_is_measured_stands_in_for_the_profile() {
    let work = workload(Task::Pretrain, 4096, 64);
    let layout = layout(8, 2, 1, 4, 1);
    let plain = a100(8);
    let time = |cluster: &Cluster| seconds(&llama70(), &work, cluster, &layout);
    let mut measured = plain.clone();
    measured.gpu.matmul_tflops = Some(0.865 * 312.0);
    measured.gpu.copy_gbps = Some(0.88 * 2039.0);
    assert!((time(&measured) / time(&plain) - 1.0).abs() < 1e-9);
    measured.gpu.matmul_tflops = Some(200.0);
    assert!(time(&measured) > 1.1 * time(&plain));
    let slow = Cluster { island_busbw: Some(100.0), nic_busbw: Some(20.0), ..plain.clone() };
    assert!(time(&slow) > 1.05 * time(&plain));
}

#[test]
fn memory_of_published_models_is_what_korthikanti_found() {
    // GB of weights and optimiser, and of activations without recomputation: Figure 1 of arXiv 2205.05198.
    let cluster = a100(64);
    let work = workload(Task::Pretrain, 2048, 64);
    let plain =
        Layout { sharding: Sharding::None, sequence_parallel: false, ..layout(8, 8, 3, 1, 1) };
    let arch = gpt3();
    let setup = |layout| Setup {
        arch: &arch,
        workload: &work,
        cluster: &cluster,
        layout,
        stack: Stack::Unfused,
    };
    let held = memory(&setup(&plain));
    assert!(
        ((held.weights + held.gradients + held.optimizer) / 45.6 - 1.0).abs() < 0.06,
        "{held:?}"
    );
    assert!((held.activations / 66.8 - 1.0).abs() < 0.1, "{held:?}");
    let selective = Layout { sequence_parallel: true, recompute: Recompute::Selective, ..plain };
    let held = memory(&setup(&selective));
    assert!((held.activations / 12.35 - 1.0).abs() < 0.1, "{held:?}");
}

/// A step is its micro-batches, the bubble, and what is done once.
#[test]
fn parts_grow_with_what_they_depend_on() {
    let (arch, cluster) = (gpt3(), a100(8));
    let at = |pp: u32, vp: u32, micro_batches: u64| {
        let (work, layout) =
            (workload(Task::Pretrain, 2048, micro_batches), layout(8, pp, vp, 1, 1));
        let (arch, workload, cluster) = (&arch, &work, &cluster);
        step_time(&Setup { arch, workload, cluster, layout: &layout, stack: Stack::Unfused })
    };
    let (few, many) = (at(8, 1, 16), at(8, 1, 64));
    let grown = |p: Part| part(&many, p) / part(&few, p);
    let same = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    for each in
        [Part::Gemm, Part::Attention, Part::Head, Part::Elementwise, Part::PipelineTransfers]
    {
        assert!(same(grown(each), 4.0), "{each:?}");
    }
    for once in [Part::Bubble, Part::Optimizer] {
        assert!(same(grown(once), 1.0), "{once:?}");
    }
    // Seven of eight ranks wait for a micro-batch each; the one with the head is the busiest.
    let busy = few.total() - part(&few, Part::Bubble) - part(&few, Part::Optimizer);
    let share = part(&few, Part::Bubble) / busy;
    assert!((0.93..1.0).contains(&(share * 16.0 / 7.0)), "{share}");
    // Without transfers, which interleaving makes more, chunks divide the bubble.
    let halves = part(&at(8, 2, 16), Part::Bubble) / part(&few, Part::Bubble);
    assert!((0.5..0.53).contains(&halves), "{halves}");
    // What is made again is everything that is done forward.
    let again = |recompute| {
        let (work, layout) = (workload(Task::Pretrain, 2048, 16), layout(8, 8, 1, 1, 1));
        let (arch, workload, cluster) = (&arch, &work, &cluster);
        let layout = Layout { recompute, ..layout };
        let setup = Setup { arch, workload, cluster, layout: &layout, stack: Stack::Unfused };
        part(&step_time(&setup), Part::Recompute)
    };
    let work = busy - part(&few, Part::Head);
    assert!((0.25..0.4).contains(&(again(Recompute::Full) / work)));
    assert_eq!(again(Recompute::None), 0.0);
}

/// Five of six layers of Gemma 3 look back over 1,024 tokens.
#[test]
fn attention_with_a_window_takes_the_time_of_its_window() {
    let narrow = names::find("gemma-3-27b").unwrap();
    let wide = Arch { window: None, ..narrow.clone() };
    let cluster = cluster(gpu("H100-SXM5-80GB", 80.0, 3350.0, 989.0), 2);
    let time = |arch: &Arch, seq: u64| {
        let (work, layout) = (workload(Task::Pretrain, seq, 8), layout(8, 2, 1, 1, 1));
        let (workload, cluster, layout, stack) = (&work, &cluster, &layout, Stack::Current);
        part(&step_time(&Setup { arch, workload, cluster, layout, stack }), Part::Attention)
    };
    let ratio = time(&wide, 131_072) / time(&narrow, 131_072);
    assert!((5.5..6.0).contains(&ratio), "{ratio}");
    // As long as the window or shorter it is all the same.
    assert!((time(&wide, 1024) / time(&narrow, 1024) - 1.0).abs() < 1e-9);
}

/// 671 billion weights, of which experts are nearly all.
#[test]
fn experts_that_are_spread_are_not_sharded_over_the_same_ranks_again() {
    let cluster = cluster(gpu("H100-SXM5-80GB", 80.0, 3350.0, 989.0), 2);
    let arch = deepseek();
    let at = |task, layout: Layout| {
        let work = workload(task, 4096, 64);
        let setup = Setup {
            arch: &arch,
            workload: &work,
            cluster: &cluster,
            layout: &layout,
            stack: Stack::Current,
        };
        memory(&setup)
    };
    let spread = |dp, ep| Layout { ep, sharding: Sharding::Zero3, ..layout(1, 1, 1, dp, 1) };
    let lora = Task::Lora { rank: 16 };
    for ep in [1, 2, 8] {
        let weights = at(lora, spread(8, ep)).weights;
        assert!((weights / 156.3 - 1.0).abs() < 0.02, "ep {ep}: {weights}");
    }
    // In a pipeline everything that the rank lacks is put together: here of everything but experts.
    let piped = |ep| Layout { pp: 2, ..spread(8, ep) };
    let (apart, alike) =
        (at(Task::Pretrain, piped(8)).buffers, at(Task::Pretrain, piped(1)).buffers);
    assert!(apart < 0.1 * alike, "{apart} {alike}");
}

#[test]
fn selective_saves_what_megatron_makes_again_and_takes_its_time() {
    let cluster = cluster(gpu("H100-SXM5-80GB", 80.0, 3350.0, 989.0), 4);
    let work = workload(Task::Pretrain, 8192, 32);
    let cost = |arch: &Arch, recompute| {
        let layout = Layout { recompute, ..layout(8, 4, 1, 1, 1) };
        let setup = Setup {
            arch,
            workload: &work,
            cluster: &cluster,
            layout: &layout,
            stack: Stack::Current,
        };
        (memory(&setup).activations, step_time(&setup).total())
    };
    // Of a dense layer, 6 bytes of each inner value and 2 of what its norm gives: the whole MLP, computed again.
    let [none, selective, full] = [Recompute::None, Recompute::Selective, Recompute::Full]
        .map(|recompute| cost(&llama70(), recompute));
    let (h, ffn, layers) = (8192.0, 28672.0, 20.0);
    let one = 8192.0 * (2.0 * h + 6.0 * ffn) / 8.0 / (1_u64 << 30) as f64;
    let saved = one * (layers * 4.0 - 1.5);
    assert!(((none.0 - selective.0) / saved - 1.0).abs() < 1e-9, "{none:?} {selective:?}");
    assert!(selective.1 > 1.1 * none.1 && selective.1 < full.1, "{selective:?} {full:?}");
    // Of experts the activation functions alone, which take next to nothing.
    let [none, selective, full] = [Recompute::None, Recompute::Selective, Recompute::Full]
        .map(|recompute| cost(&deepseek(), recompute));
    assert!(full.0 < selective.0 && selective.0 < 0.9 * none.0, "{none:?} {selective:?}");
    assert!(selective.1 < 1.1 * none.1, "{none:?} {selective:?}");
}

fn any_arch() -> impl Strategy<Value = Arch> {
    let shape = (1_u32..9, 1_u64..9, 1_u32..5, any::<bool>(), any::<bool>(), any::<bool>());
    shape.prop_map(|(layers, width, heads, gated, experts, latent)| {
        let heads = 1 << heads;
        let hidden = width * 128 * u64::from(heads);
        let moe = Moe { experts: 16, topk: 4, ffn: hidden / 2, shared: 1, dense_layers: 1 };
        Arch {
            moe: experts.then_some(moe),
            latent: latent.then_some(Latent {
                q_rank: 0,
                kv_rank: 512,
                rope_dim: 64,
                nope_dim: 128,
                value_dim: 128,
            }),
            ..dense(layers * 4, hidden, heads, (heads / 2).max(1), 4 * hidden, gated)
        }
    })
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let sizes = (0_u32..4, 0_u32..3, 1_u32..3, 0_u32..3, 0_u32..4, 0_u32..5, 0_u64..3);
    let sharding = prop_oneof![
        Just(Sharding::None),
        Just(Sharding::Zero1),
        Just(Sharding::Zero2),
        Just(Sharding::Zero3)
    ];
    let recompute =
        prop_oneof![Just(Recompute::None), Just(Recompute::Selective), Just(Recompute::Full)];
    (sizes, sharding, recompute, any::<bool>()).prop_map(
        |(n, sharding, recompute, sequence_parallel)| Layout {
            tp: 1 << n.0,
            pp: 1 << n.1,
            vp: if n.1 > 0 { n.2 } else { 1 },
            cp: 1 << n.3,
            ep: 1 << n.4,
            dp: 1 << n.5,
            micro_batch: 1 << n.6,
            sharding,
            sequence_parallel,
            recompute,
        },
    )
}

fn any_workload() -> impl Strategy<Value = Workload> {
    let precision = prop_oneof![
        Just(Precision::Fp16),
        Just(Precision::Bf16),
        Just(Precision::Fp8),
        Just(Precision::Mxfp8),
        Just(Precision::Nvfp4)
    ];
    let task =
        prop_oneof![Just(Task::Pretrain), Just(Task::Finetune), Just(Task::Lora { rank: 16 })];
    (task, precision, 9_u32..16, 0_u32..9).prop_map(|(task, precision, seq, batch)| Workload {
        precision,
        ..workload(task, 1 << seq, 1 << batch)
    })
}

fn any_cluster() -> impl Strategy<Value = Cluster> {
    let name = prop_oneof![
        Just("V100-SXM2-32GB"),
        Just("A100-SXM4-80GB"),
        Just("H100-SXM5-80GB"),
        Just("GB200-NVL72"),
        Just("MI300X"),
        Just("L40S"),
        Just("something else")
    ];
    let figures = (8.0..300.0_f64, 200.0..9000.0_f64, 50.0..3000.0_f64);
    let links = (1_u32..80, 10.0..1000.0_f64, 5.0..100.0_f64, 1.0..900.0_f64);
    (name, figures, links).prop_map(|(name, (memory, hbm, peak), (island, fast, pcie, nic))| {
        Cluster {
            island,
            island_gbps: fast,
            pcie_gbps: pcie.min(fast),
            nic_gbps: nic.min(8.0 * pcie),
            ..cluster(gpu(name, memory, hbm, peak), 1000)
        }
    })
}

const STACKS: [Stack; 7] = [
    Stack::Current,
    Stack::Recent,
    Stack::Fused,
    Stack::Unfused,
    Stack::Fsdp,
    Stack::Compiled,
    Stack::Compiled2024,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_global_rejects: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_are_finite_and_there_where_they_must_be(arch in any_arch(), work in any_workload(), cluster in any_cluster(), layout in any_layout()) {
        prop_assume!(legal(&arch, &work, &cluster, &layout).is_ok());
        for stack in STACKS {
            let estimate = estimate(&Setup { arch: &arch, workload: &work, cluster: &cluster, layout: &layout, stack });
            for (part, seconds) in &estimate.time.parts {
                prop_assert!(seconds.is_finite() && *seconds >= 0.0, "{part:?} {seconds}");
            }
            for needed in [Part::Gemm, Part::Attention, Part::Head, Part::Elementwise, Part::Optimizer] {
                prop_assert!(part(&estimate.time, needed) > 0.0, "{needed:?}");
            }
            for (wide, parallel) in [(layout.tp, Part::TensorParallel), (layout.cp, Part::ContextParallel), (layout.pp, Part::Bubble), (layout.dp * layout.cp, Part::DataParallel)] {
                prop_assert!((part(&estimate.time, parallel) > 0.0) == (wide > 1), "{parallel:?} of {wide}");
            }
            for (kind, gb) in estimate.memory.parts() {
                prop_assert!(gb.is_finite() && gb >= 0.0, "{kind} {gb}");
            }
            prop_assert!(estimate.memory.total() > 0.0);
        }
    }

    #[test]
    fn sharding_everything_leaves_no_rank_less_than_its_part(arch in any_arch(), work in any_workload(), cluster in any_cluster(), layout in any_layout()) {
        let layout = Layout { sharding: Sharding::Zero3, ..layout };
        prop_assume!(legal(&arch, &work, &cluster, &layout).is_ok());
        // The last norm is held by nobody.
        let part = 2.0 * (arch.params() - arch.hidden as f64) / f64::from(layout.gpus()) / GB;
        let setup = Setup { arch: &arch, workload: &work, cluster: &cluster, layout: &layout, stack: Stack::Current };
        let weights = memory(&setup).weights;
        prop_assert!(weights >= part * (1.0 - 1e-9), "{weights} < {part}");
    }

    #[test]
    fn looking_back_less_is_never_slower(arch in any_arch(), work in any_workload(), cluster in any_cluster(), layout in any_layout(), tokens in 1_u64..100_000, layers in 0_u32..40) {
        prop_assume!(legal(&arch, &work, &cluster, &layout).is_ok());
        let narrow = Arch { window: Some(Window { tokens, layers }), ..arch.clone() };
        for stack in STACKS {
            let time = |arch: &Arch| step_time(&Setup { arch, workload: &work, cluster: &cluster, layout: &layout, stack }).total();
            prop_assert!(time(&narrow) <= time(&arch) * (1.0 + 1e-9), "{stack:?}");
        }
    }

    #[test]
    fn faster_parts_never_make_it_slower(arch in any_arch(), work in any_workload(), cluster in any_cluster(), layout in any_layout(), more in 1.0..4.0_f64) {
        prop_assume!(legal(&arch, &work, &cluster, &layout).is_ok());
        let mut faster: Vec<Cluster> = vec![cluster.clone(); 5];
        faster[0].island_gbps *= more;
        faster[1].pcie_gbps *= more;
        faster[2].nic_gbps *= more;
        faster[3].gpu.hbm_gbps *= more;
        let gpu = &mut faster[4].gpu;
        gpu.bf16_tflops *= more;
        gpu.fp8_tflops = gpu.fp8_tflops.map(|t| t * more);
        for stack in STACKS {
            let time = |c: &Cluster| step_time(&Setup { arch: &arch, workload: &work, cluster: c, layout: &layout, stack }).total();
            let before = time(&cluster);
            for (n, c) in faster.iter().enumerate() {
                prop_assert!(time(c) <= before * (1.0 + 1e-9), "{n} {stack:?}: {} > {before}", time(c));
            }
        }
    }
}
