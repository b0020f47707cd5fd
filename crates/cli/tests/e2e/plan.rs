use std::fs;
use std::path::Path;

use serde_json::Value;
use tutti_testkit::{Cli, Done};

use crate::{TUTTI, cluster};

/// Without a cluster: a plan needs none.
fn plan_in(dir: &Path, line: &str) -> Done {
    let words: Vec<&str> = ["plan"].into_iter().chain(line.split_whitespace()).collect();
    Cli::new(TUTTI.as_ref(), &words).dir(dir).call()
}

fn plan(line: &str) -> Done {
    plan_in(&std::env::temp_dir(), line)
}

fn json(line: &str) -> Value {
    let done = plan(&format!("{line} --json"));
    serde_json::from_str(&done.succeeded()).unwrap_or_else(|e| panic!("{e}: {done}"))
}

fn degree(found: &Value, name: &str) -> u64 {
    found["plan"]["layout"][name].as_u64().unwrap_or_else(|| panic!("{name} in {found}"))
}

#[test]
fn the_textbook_finetunes_70b_by_lora_on_one_node() {
    let line = "llama-3.1-70b --task lora --on 8xa100 --batch 16 --seq 2048";
    let found = json(line);
    assert_eq!((degree(&found, "tp"), degree(&found, "dp")), (4, 2), "{found:#}");
    let text = plan(line).succeeded();
    for want in [
        "finetune by LoRA",
        "tp 4 × dp 2",
        "because    one GPU would need 1",
        "GB on each GPU",
        "tokens/s",
        "USD for a billion tokens, ",
        "next: tutti plan",
    ] {
        assert!(text.contains(want), "{want} in\n{text}");
    }
}

/// Neither a price that nobody knows nor a next step that would be refused is told.
#[test]
fn what_can_not_be_known_or_done_is_not_told() {
    // Nobody lists a price for these.
    let line = "llama-3.1-8b --on 8xh20";
    let without = plan(line).succeeded();
    assert!(!without.contains("price"), "{without}");
    let whole = plan(&format!("{line} --tokens 1B")).succeeded();
    assert!(whole.contains("price      not known: --price"), "{whole}");
    let priced = plan(&format!("{line} --price 2")).succeeded();
    assert!(priced.contains("for a billion tokens, 2.00 USD per GPU-hour"), "{priced}");
    let numbers = plan("--layers 16 --hidden 2048 --on 8xh100").succeeded();
    assert!(!numbers.contains("next:"), "{numbers}");
}

#[test]
fn a_whole_run_has_a_length_and_a_price() {
    let found = json("llama-3.1-70b --on 16xdgx-h100 --tokens 1T --price 2");
    assert_eq!(found["plan"]["gpus"], 128);
    let (run, best) = (&found["run"], &found["plan"]);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {found:#}"));
    assert!(number(&best["memory_gb"]) <= number(&found["usable_gb"]));
    assert!(number(&run["effective_seconds"]) > number(&run["seconds"]));
    let hours = number(&run["gpu_hours"]);
    assert!((number(&run["price"]) / (2.0 * hours) - 1.0).abs() < 1e-6, "{run:#}");
    let parts: f64 = best["time"].as_object().unwrap().values().map(number).sum();
    assert!((parts / number(&best["step_time_s"]) - 1.0).abs() < 1e-6, "{best:#}");
    for key in ["model", "params", "workload", "cluster", "currency", "runners_up", "what_if"] {
        assert!(!found[key].is_null(), "{key} in {found:#}");
    }
    assert!(found["considered"].as_u64() >= found["fitting"].as_u64());
    assert_eq!(json("llama-3.1-8b --on 1xdgx-h100")["run"], Value::Null);
    let text = plan("llama-3.1-70b --on 16xdgx-h100 --tokens 1T").succeeded();
    for want in ["run ", "with failures", "price ", "USD for", "limit "] {
        assert!(text.contains(want), "{want} in\n{text}");
    }
}

#[test]
fn why_is_told_in_full_and_fits_the_width() {
    let text = plan("llama-3.1-70b --on 4xdgx-h100 --explain").succeeded();
    for want in [
        "memory of the fullest GPU",
        "time of a step",
        "WHY IT LOSES",
        "WHAT IF",
        "together",
        "how sure: ",
    ] {
        assert!(text.contains(want), "{want} in\n{text}");
    }
    let bars = text.lines().filter(|l| l.starts_with('█'));
    assert!(bars.clone().count() >= 2, "{text}");
    assert!(bars.into_iter().all(|l| l.chars().count() <= 80), "{text}");
}

/// What is cheap over InfiniBand is not over one slow wire.
#[test]
fn slow_links_change_the_layout() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("slow.toml"), "gpu = 'h100'\nnodes = 8\nnic_gbps = 1\n").unwrap();
    let layout = |on: &str| {
        let done = plan_in(dir.path(), &format!("llama-3.1-70b --on {on} --batch 512 --json"));
        let found: Value = serde_json::from_str(&done.succeeded()).unwrap();
        (found["plan"]["layout"].clone(), found["plan"]["step_time_s"].as_f64().unwrap())
    };
    let (fast, slow) = (layout("8xdgx-h100"), layout("slow.toml"));
    assert_ne!(fast.0, slow.0);
    assert!(slow.1 > fast.1, "{slow:?} {fast:?}");
}

#[test]
fn nonsense_is_named_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let bert = r#"{"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12}"#;
    fs::write(dir.path().join("config.json"), bert).unwrap();
    fs::write(dir.path().join("c.toml"), "gpu = 'h100'\nnodes = 0\n").unwrap();
    fs::write(dir.path().join("m.json"), "{}").unwrap();
    for (line, code, words) in [
        ("llama-3.1-8b --on 8xh100 --batch 0", 2, &["0", "--batch"][..]),
        ("llama-3.1-8b --on 8xh100 --tp 3", 5, &["32 attention heads", "tp 3"]),
        ("lama-3.1-8b --on 8xh100", 2, &["lama-3.1-8b", "llama-3.1-8b", "--list models"]),
        ("./config.json --on 8xh100", 2, &["config.json", "bert"]),
        ("./none.json --on 8xh100", 2, &["none.json"]),
        ("llama-3.1-8b --on 8xh1000", 2, &["h1000", "--list clusters"]),
        ("llama-3.1-8b --on c.toml", 2, &["c.toml", "nodes"]),
        ("llama-3.1-8b --on 8xh100 --measured m.json", 2, &["m.json"]),
        ("llama-3.1-405b --on 1xh100", 5, &["does not fit"]),
        ("--layers 8 --on 8xh100", 2, &["--hidden"]),
        ("llama-3.1-8b --task inference --on 8xh100 --seq 8", 2, &["--seq does nothing"]),
        ("--check job.toml --tp 2", 2, &["--tp does nothing"]),
        ("--check job.toml --predict runs.csv", 2, &["--check and --predict are questions"]),
        ("llama-3.1-8b --on -1xh100", 2, &["'-1xh100' asks for -1"]),
        ("llama-3.1-8b --on 8xh100 --tokens -5", 2, &["'-5'", "300B"]),
        ("llama-3.1-8b --tokens 1T --deadline 0", 2, &["'0'", "7d"]),
        ("llama-3.1-8b --on 8xh100 --deadline 7d", 2, &["--on does nothing"]),
        ("llama-3.1-8b --on 8xh100 --json --write job", 2, &["do not go together"]),
        ("llama-3.1-8b --on 8xh100 --write vllm", 2, &["--task inference"]),
        ("--layers 8 --hidden 1024 --on 8xh100 --write job", 2, &["config.json"]),
        ("", 2, &["which model?"]),
    ] {
        let done = plan_in(dir.path(), line);
        done.exited(code).says(words);
        assert_eq!(done.out, "", "{done}");
    }
}

#[test]
fn without_a_cluster_it_says_how_to_plan_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("nowhere");
    let done =
        Cli::new(TUTTI.as_ref(), &["plan", "llama-3.1-8b"]).env("TUTTI_CLUSTER", &nowhere).call();
    done.exited(75).says(&["nowhere", "--on"]);
    let on = ["plan", "llama-3.1-8b", "--on", "8xh100"];
    Cli::new(TUTTI.as_ref(), &on).env("TUTTI_CLUSTER", &nowhere).ok();
}

#[test]
fn figures_of_known_runs() {
    let dir = tempfile::tempdir().unwrap();
    let head = "id,accelerator,gpus,gpus_per_node,model,layers,hidden,heads,kv_heads,ffn,gated_mlp,vocab,seq_len,\
                global_batch,micro_batch,tp,pp,dp,precision,recompute";
    let row = |id: &str, gpu: &str| {
        format!("{id},{gpu},8,8,llama,32,4096,32,8,14336,1,128256,8192,128,1,2,1,4,bf16,none\n")
    };
    let rows = row("a", "H100-SXM5-80GB") + &row("b", "a potato");
    fs::write(dir.path().join("runs.csv"), format!("{head}\n{rows}")).unwrap();
    let out = plan_in(dir.path(), "--predict runs.csv").succeeded();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "id,step_time_s,mem_gb,error"), "{out}");
    let first: Vec<&str> = lines[1].split(',').collect();
    let seconds: f64 = first[1].parse().unwrap_or_else(|_| panic!("{out}"));
    assert!((1.0..100.0).contains(&seconds), "{out}");
    assert!(lines[2].starts_with("b,,,") && lines[2].contains("potato"), "{out}");
    assert_eq!(plan_in(dir.path(), "--predict runs.csv --out out.csv").succeeded(), "");
    assert_eq!(fs::read_to_string(dir.path().join("out.csv")).unwrap().trim_end(), out);
    fs::write(dir.path().join("empty.csv"), "").unwrap();
    plan_in(dir.path(), "--predict empty.csv").exited(2).says(&["empty.csv"]);
}

#[test]
fn a_plan_is_written_for_each_program() {
    let dir = tempfile::tempdir().unwrap();
    let on = "llama-3.1-8b --on 8xh100 --batch 64";
    let write = |line: &str| plan_in(dir.path(), line);
    let toml =
        write(&format!("{on} --zero 3 --sequence-parallel true --write torchtitan")).succeeded();
    let read: toml::Table = toml::from_str(&toml).unwrap();
    assert_eq!(read["model"]["flavor"].as_str(), Some("8B"));
    let flags = write(&format!("{on} --write megatron")).succeeded();
    assert!(
        flags.starts_with("python pretrain_gpt.py") && flags.contains("--num-layers 32"),
        "{flags}"
    );
    let config =
        write(&format!("{on} --zero 3 --vp 1 --cp 1 --pp 1 --write deepspeed")).succeeded();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["train_batch_size"], 64);
    let server = write("llama-3.1-8b --task inference --on 1xh100 --write vllm").succeeded();
    assert!(server.starts_with("vllm serve llama-3.1-8b"), "{server}");
    let refused = write(&format!("{on} --task lora --write torchtitan"));
    refused.exited(2).says(&["torchtitan can't do LoRA"]);

    write(&format!("{on} --write job --out job.toml")).exited(0).says(&["run"]);
    let elsewhere = ["plan", "--check", "job.toml"];
    let nowhere = dir.path().join("nowhere");
    let done =
        Cli::new(TUTTI.as_ref(), &elsewhere).dir(dir.path()).env("TUTTI_CLUSTER", nowhere).call();
    done.exited(0).says(&["catalogue"]);
    assert!(done.out.starts_with("fits: ") && done.out.contains(", planned "), "{done}");
    assert!(!done.err.contains("warning"), "{done}");
    let checked = write("--check job.toml --on 8xh100 --json").succeeded();
    let checked: Value = serde_json::from_str(&checked).unwrap();
    assert!(checked["memory_gb"].as_f64() < checked["usable_gb"].as_f64(), "{checked}");
}

#[test]
fn names_are_listed() {
    for (what, want) in
        [("models", "llama-3.1-70b"), ("clusters", "dgx-h100"), ("gpus", "H100-SXM5-80GB")]
    {
        assert!(plan(&format!("--list {what}")).succeeded().contains(want), "{what}");
        let list: Value =
            serde_json::from_str(&plan(&format!("--list {what} --json")).succeeded()).unwrap();
        assert!(list.as_array().is_some_and(|all| all.len() > 5), "{what}");
    }
}

#[test]
fn a_server_and_a_cluster_for_a_deadline() {
    let served =
        json("llama-3.1-8b --task inference --on 1xdgx-h100 --ttft 2s --tpot 100ms --rps 1");
    assert!(served["plan"]["gpus"].as_u64().is_some_and(|n| (1..=8).contains(&n)), "{served:#}");
    plan("llama-3.1-405b --task inference --on 1xl40s").exited(5).says(&["does not fit"]);
    let picks = json("llama-3.1-8b --tokens 100B --deadline 30d");
    let seconds = |pick: &Value| pick["run"]["effective_seconds"].as_f64().unwrap();
    let picks = picks.as_array().unwrap();
    assert!(!picks.is_empty() && picks.iter().all(|p| seconds(p) <= 30.0 * 86_400.0), "{picks:?}");
    plan("llama-3.1-405b --tokens 15T --budget 1")
        .exited(5)
        .says(&["no cluster of the catalogue does it"]);
}

/// Two nodes with 8 imagined H100s each.
#[test]
fn the_running_cluster_is_planned_for_checked_and_warned_of() {
    let cluster = cluster(2);
    let scratch = cluster.scratch().to_owned();
    let found = cluster.cli(&["plan", "llama-3.1-8b", "--batch", "64", "--json"]).ok();
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(
        (found["plan"]["gpus"].as_u64(), found["cluster"]["island"].as_u64()),
        (Some(16), Some(8))
    );

    let job = |gpus: u32, model: &str| {
        format!(
            "run = 'true'\ngpus_per_node = 'h100:{gpus}'\n[plan]\nmodel = '{model}'\nseq = 4096\nglobal_batch = 8\n"
        )
    };
    fs::write(scratch.join("fits.toml"), job(1, "qwen2.5-0.5b")).unwrap();
    fs::write(scratch.join("large.toml"), job(1, "llama-3.1-70b")).unwrap();
    fs::write(scratch.join("few.toml"), format!("{}dp = 4\n", job(2, "qwen2.5-0.5b"))).unwrap();
    let out = cluster.cli(&["plan", "--check", "fits.toml"]).ok();
    assert!(out.contains("fits: ") && out.contains("the running cluster"), "{out}");
    let done = cluster.cli(&["plan", "--check", "large.toml"]).call();
    done.exited(5).says(&["does not fit", "GB on each GPU"]);
    cluster
        .cli(&["plan", "--check", "few.toml"])
        .call()
        .exited(5)
        .says(&["needs 4 GPUs", "asks for 2"]);
    fs::write(scratch.join("none.toml"), "run = 'true'\n").unwrap();
    cluster.cli(&["plan", "--check", "none.toml"]).call().exited(2).says(&["no [plan]"]);
    fs::write(scratch.join("words.toml"), job(1, "qwen2.5-0.5b") + "task = 'guess'\n").unwrap();
    cluster.cli(&["plan", "--check", "words.toml"]).call().exited(2).says(&["plan.task", "guess"]);

    let quiet = cluster.cli(&["submit", "fits.toml"]).call();
    assert!(quiet.code == 0 && quiet.err.is_empty(), "{quiet}");
    let warned = cluster.cli(&["submit", "large.toml"]).call();
    warned.exited(0).says(&["warning: its [plan]: does not fit"]);
    assert!(warned.out.trim().parse::<u64>().is_ok(), "the id alone: {warned}");

    // What --check says, submit says too.
    fs::write(scratch.join("typo.toml"), job(1, "qwen2.5-0.6b")).unwrap();
    let typo = "plan.model: ";
    cluster.cli(&["plan", "--check", "typo.toml"]).call().exited(2).says(&[typo, "qwen2.5-0.6b"]);
    cluster.cli(&["submit", "typo.toml"]).call().exited(0).says(&["warning: its [plan]: ", typo]);
    fs::write(scratch.join("idle.toml"), job(8, "qwen2.5-0.5b") + "dp = 4\nstep_time_s = 1000.0\n")
        .unwrap();
    let odd = ["planned for 4: 4 would have nothing to do", "step_time_s is 17 min"];
    let checked = cluster.cli(&["plan", "--check", "idle.toml"]).call();
    checked.exited(0).says(&odd);
    assert!(checked.out.starts_with("fits: "), "{checked}");
    cluster.cli(&["submit", "idle.toml"]).call().exited(0).says(&odd);
}

#[test]
fn what_was_planned_is_shown_beside_what_is_seen() {
    let cluster = cluster(1);
    let step = format!("{TUTTI} progress --step $i");
    let line = format!("for i in 1 2 3 4 5 6; do {step}; sleep 0.2; done; sleep 600");
    let mut spec = tutti_model::JobSpec::shell(line);
    let plan = r#"{"model": "qwen2.5-0.5b", "seq": 4096, "global_batch": 8, "step_time_s": 0.1}"#;
    spec.plan = serde_json::from_str(plan).unwrap();
    let id = cluster.submit(spec).to_string();
    let shown = tutti_testkit::wait_for("its pace is known", tutti_testkit::PATIENCE, || {
        let text = cluster.cli(&["show", &id]).ok();
        text.contains("planned ").then_some(text)
    });
    assert!(shown.contains("100 ms a step, seen"), "{shown}");
    let report = cluster.cli(&["report", &id]).ok();
    assert!(report.contains("100 ms a step, seen"), "{report}");
    let report: Value =
        serde_json::from_str(&cluster.cli(&["report", &id, "--json"]).ok()).unwrap();
    assert_eq!(report["plan"]["planned_step_s"], 0.1);
    assert!(report["plan"]["seen_step_s"].as_f64().is_some_and(|s| s > 0.1), "{report:#}");
}
