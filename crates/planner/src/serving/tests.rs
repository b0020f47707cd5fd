use super::*;
use crate::efficiency::profile;
use crate::{catalogue, names};

fn ask<'a>(arch: &'a Arch, cluster: &'a Cluster) -> Serving<'a> {
    Serving {
        arch,
        cluster,
        precision: Precision::Bf16,
        prompt: 1024,
        output: 256,
        ttft_ms: None,
        tpot_ms: None,
        requests_per_s: None,
        tp: None,
        pp: None,
    }
}

/// The textbook's: 141 × 10⁹ bytes of weights and eight cards of 80 GB.
#[test]
fn seventy_billion_weights_on_eight_cards_are_two_replicas_of_four() {
    let arch = names::find("llama-3.1-70b").unwrap();
    let cluster = catalogue::find("8xa100").unwrap();
    let plan = serve(&ask(&arch, &cluster)).unwrap();
    assert_eq!((plan.tp, plan.pp, plan.replicas), (4, 1, 2), "{plan:#?}");
    assert!((plan.weights_gb - 131.4).abs() < 0.1);
    assert!(plan.others.iter().any(|o| o.starts_with("tp 2 × 4 replicas: ")), "{plan:#?}");
    let one =
        "tp 1: does not fit, 131 GB of weights on a GPU that has room for 70.8 GB with requests";
    assert!(plan.others.iter().any(|o| o == one), "{plan:#?}");
    assert!(plan.others.iter().any(|o| o.starts_with("tp 8 × 1 replica: ")), "{plan:#?}");
}

#[test]
fn kept_tokens_are_counted_as_they_are_kept() {
    let arch = names::find("llama-3.1-8b").unwrap();
    let cluster = catalogue::find("1xh100").unwrap();
    let plan = serve(&ask(&arch, &cluster)).unwrap();
    // 32 layers × 8 heads × 128 × key and value × 2 bytes = 2¹⁷ bytes for each of 1,280 tokens.
    assert!((plan.kv_gb_per_request - 0.156_25).abs() < 1e-9);
    // A token takes the weights once over, and on average 1,152 tokens of each request, at 75 % of 3,350 GB/s.
    let few = serve(&Serving { tpot_ms: Some(8.0), ..ask(&arch, &cluster) }).unwrap();
    let read = 15.0098e9 + few.concurrency as f64 * 1152.0 * 131_072.0;
    assert!(few.tpot_s.unwrap() <= 8e-3 && few.concurrency < plan.concurrency, "{few:#?}");
    assert!((few.decode_s - 1e-3 - read / (0.75 * 3.35e12)).abs() < 1e-6, "{few:#?}");
}

#[test]
fn what_is_measured_as_expected_changes_nothing() {
    let arch = names::find("llama-3.1-70b").unwrap();
    let plain = catalogue::find("dgx-h100").unwrap();
    let mut measured = plain.clone();
    let gpu = &mut measured.gpu;
    gpu.copy_gbps = Some(gpu.hbm_gbps * profile(gpu).copy);
    gpu.matmul_tflops = Some(gpu.bf16_tflops * profile(gpu).gemm);
    let [before, after] = [&plain, &measured].map(|c| serve(&ask(&arch, c)).unwrap());
    let same = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    assert_eq!((before.tp, before.concurrency), (after.tp, after.concurrency));
    assert!(same(before.decode_s, after.decode_s) && same(before.ttft_s, after.ttft_s));
    measured.gpu.copy_gbps = measured.gpu.copy_gbps.map(|gbps| gbps / 2.0);
    let slower = serve(&ask(&arch, &measured)).unwrap();
    assert!(slower.tokens_per_s < after.tokens_per_s);
}

#[test]
fn a_tighter_bound_serves_fewer_and_a_looser_one_more() {
    let arch = names::find("llama-3.1-70b").unwrap();
    let cluster = catalogue::find("dgx-h100").unwrap();
    let at = |ms: f64| serve(&Serving { tpot_ms: Some(ms), ..ask(&arch, &cluster) }).unwrap();
    let (tight, loose) = (at(25.0), at(100.0));
    assert!(tight.tpot_s.unwrap() <= 0.025 && loose.tpot_s.unwrap() <= 0.1);
    assert!(tight.tokens_per_s < loose.tokens_per_s);
    assert!(tight.price_per_million_tokens > loose.price_per_million_tokens);
}

#[test]
fn a_load_says_its_replicas() {
    let arch = names::find("llama-3.1-8b").unwrap();
    let cluster = catalogue::find("dgx-h100").unwrap();
    let at =
        |rate: f64| serve(&Serving { requests_per_s: Some(rate), ..ask(&arch, &cluster) }).unwrap();
    let small = at(1.0);
    assert_eq!((small.replicas_needed, small.gpus), (Some(1), 1));
    let large = at(1e4);
    let needed = f64::from(large.replicas_needed.unwrap());
    assert!(needed * large.replica_tokens_per_s >= 1e4 * 256.0);
    assert!(large.gpus_needed.unwrap() > cluster.gpus());
}

#[test]
fn what_is_too_large_says_what_would_do() {
    let arch = names::find("llama-3.1-405b").unwrap();
    let cluster = catalogue::find("dgx-h100").unwrap();
    let e = serve(&ask(&arch, &cluster)).unwrap_err().to_string();
    assert_eq!(
        e,
        "does not fit: 756 GB of weights, and 8 GPUs with room for 70.8 GB each; 16 GPUs (2 nodes) would do"
    );
    let two = catalogue::find("2xdgx-h100").unwrap();
    let plan = serve(&ask(&arch, &two)).unwrap();
    assert_eq!((plan.tp, plan.pp), (8, 2));
    let narrow = serve(&Serving { precision: Precision::Fp8, ..ask(&arch, &cluster) }).unwrap();
    assert_eq!((narrow.tp, narrow.pp), (8, 1));
}

#[test]
fn a_rack_is_split_by_what_divides_the_heads() {
    let arch = names::find("kimi-k2").unwrap();
    let cluster = catalogue::find("gb200-nvl72").unwrap();
    let plan = serve(&ask(&arch, &cluster)).unwrap();
    assert_eq!((plan.tp, plan.pp, plan.replicas), (16, 1, 4), "{plan:#?}");
}

#[test]
fn bounds_that_cannot_be_kept_say_the_best() {
    let arch = names::find("llama-3.1-70b").unwrap();
    let cluster = catalogue::find("dgx-h100").unwrap();
    let says = |s: Serving| serve(&s).unwrap_err().to_string();
    let e = says(Serving { tpot_ms: Some(1.0), ..ask(&arch, &cluster) });
    assert!(
        e.starts_with("no layout writes a token within 1.00 ms: the best is")
            && e.ends_with("with tp 8"),
        "{e}"
    );
    let e = says(Serving { ttft_ms: Some(1.0), ..ask(&arch, &cluster) });
    assert!(e.starts_with("no layout answers within 1.00 ms"), "{e}");
    let e = says(Serving { tp: Some(7), ..ask(&arch, &cluster) });
    assert_eq!(e, "64 attention heads do not divide by tp 7; use a tp that divides them");
    let e = says(Serving { tp: Some(16), ..ask(&arch, &cluster) });
    assert!(e.starts_with("the layout needs 16 GPUs"), "{e}");
    let e = says(Serving { output: 0, ..ask(&arch, &cluster) });
    assert_eq!(e, "the output is 0; it must be from 1 to 100,000,000 tokens");
    let e = says(Serving { tpot_ms: Some(f64::NAN), ..ask(&arch, &cluster) });
    assert!(e.starts_with("the time between tokens is NaN"), "{e}");
}

#[test]
fn experts_and_latents_are_served() {
    let arch = names::find("deepseek-v3").unwrap();
    let cluster = catalogue::find("dgx-h200").unwrap();
    let plan = serve(&Serving { precision: Precision::Fp8, ..ask(&arch, &cluster) }).unwrap();
    assert_eq!((plan.tp, plan.replicas), (8, 1));
    // Fewer requests at once visit fewer experts, and a step is shorter.
    let bound = Some(plan.tpot_s.unwrap() * 1e3 * 0.8);
    let few = Serving { precision: Precision::Fp8, tpot_ms: bound, ..ask(&arch, &cluster) };
    let few = serve(&few).unwrap();
    assert!(few.concurrency < plan.concurrency && few.decode_s < plan.decode_s);
}

#[test]
fn what_is_kept_of_a_request_is_to_blame_where_the_weights_fit() {
    let arch = names::find("llama-3.1-8b").unwrap();
    let cluster = catalogue::find("1xh100").unwrap();
    let long = Serving { prompt: 1_000_000, ..ask(&arch, &cluster) };
    let e = serve(&long).unwrap_err().to_string();
    assert_eq!(
        e,
        "does not fit: one request of 1,000,256 tokens keeps 122 GB beside 15.0 GB of weights, and 1 GPU with room for \
         70.8 GB; 2 GPUs (1 node) would do"
    );
    let two = catalogue::find("2xh100").unwrap();
    let pinned = Serving { cluster: &two, tp: Some(1), pp: Some(1), ..long };
    let e = serve(&pinned).unwrap_err().to_string();
    assert!(e.ends_with("2 GPUs with room for 70.8 GB each; without --tp 1 --pp 1 it fits"), "{e}");
    assert!(serve(&Serving { cluster: &two, ..long }).is_ok());
}

#[test]
fn one_token_has_none_after_it() {
    let arch = names::find("llama-3.1-70b").unwrap();
    let cluster = catalogue::find("8xa100").unwrap();
    let plan = serve(&Serving { output: 1, tpot_ms: Some(1e-3), ..ask(&arch, &cluster) }).unwrap();
    assert_eq!(plan.tpot_s, None);
    assert!(plan.others.iter().all(|o| !o.contains("between tokens")), "{plan:#?}");
}

#[test]
fn a_pipeline_that_would_carry_more_is_told_of() {
    let arch = names::find("llama-3.1-70b").unwrap();
    // Without NVLink an exchange in every layer is dear, and a hop between stages is not.
    let cluster = catalogue::find("8xl40s").unwrap();
    let plan = serve(&ask(&arch, &cluster)).unwrap();
    let piped = plan.others.iter().find(|o| o.contains(", but a pipeline")).unwrap();
    assert!(plan.pp == 1 && piped.contains(" × pp "), "{plan:#?}");
    assert!(piped.contains("more tokens a second"), "{piped}");
}

#[test]
fn a_gpu_without_bf16_says_so() {
    let arch = names::find("llama-3.1-8b").unwrap();
    let cluster = catalogue::find("8xv100").unwrap();
    let e = serve(&ask(&arch, &cluster)).unwrap_err().to_string();
    assert_eq!(e, "V100-SXM2-32GB has no bf16; use fp16");
    assert!(serve(&Serving { precision: Precision::Fp16, ..ask(&arch, &cluster) }).is_ok());
}
