//! What nodes do, seen by people and by a real Prometheus.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tutti_model::{Grant, JobSpec, JobState, Role};
use tutti_testkit::{Cluster, PATIENCE, wait_for};
use tutti_wire::api::NewToken;

use crate::cluster;

/// Killed when the test is over, however it ends.
struct Prometheus {
    child: Child,
    address: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(dir: &Path, target: &str, token: &Path) -> Prometheus {
        let config = dir.join("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: tutti\n    \
             authorization:\n      credentials_file: {}\n    static_configs:\n      \
             - targets: ['{target}']\n",
            token.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("prometheus").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("prometheus can be started");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let listens = lines.by_ref().map_while(Result::ok).find_map(|line| {
            said += &line;
            said += "\n";
            let (_, rest) = line.split_once("\"Listening on\" address=")?;
            Some(rest.split_whitespace().next()?.to_owned())
        });
        // It must not wait for somebody to read the rest.
        std::thread::spawn(move || lines.for_each(drop));
        let prometheus = Prometheus { child, address: listens.unwrap_or_default() };
        assert!(!prometheus.address.is_empty(), "prometheus does not listen:\n{said}");
        prometheus
    }

    /// What an instant query gives.
    fn query(&self, query: &str) -> Vec<Value> {
        let url = format!("http://{}/api/v1/query", self.address);
        let asked = Command::new("curl")
            .args(["-sS", "-G", "--data-urlencode", &format!("query={query}"), &url])
            .output()
            .expect("curl can be started");
        let answer: Value = serde_json::from_slice(&asked.stdout).unwrap_or_default();
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }
}

fn value(result: &Value) -> f64 {
    result["value"][1].as_str().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

fn training(cluster: &Cluster) -> String {
    let spec = JobSpec { gpus: Some(2), ..JobSpec::shell("sleep 1000") };
    let id = cluster.submit(spec);
    cluster.wait_state(id, JobState::Running);
    id.to_string()
}

fn viewer(cluster: &Cluster) -> String {
    let grant = Grant::Access { user: "prometheus".into(), role: Role::Viewer };
    let token = NewToken { grant, expires_in: None };
    cluster.client().create_token(&token).unwrap().secret
}

fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
#[allow(clippy::print_stderr)]
fn a_real_prometheus_reads_the_cluster() {
    if !installed("prometheus") || !installed("promtool") {
        eprintln!("SKIPPED: Debian's package prometheus is not installed");
        return;
    }
    let cluster = cluster(2);
    let job = training(&cluster);
    let token = cluster.scratch().join("prometheus.token");
    let secret = viewer(&cluster);
    std::fs::write(&token, &secret).unwrap();
    let endpoint = cluster.client().endpoint().authority();
    let prometheus = Prometheus::start(cluster.scratch(), &endpoint, &token);

    wait_for("the cluster is up to Prometheus", PATIENCE, || {
        let up = prometheus.query("up{job=\"tutti\"}");
        up.iter().any(|result| value(result) == 1.0).then_some(())
    });
    let busy = format!("DCGM_FI_DEV_GPU_UTIL{{hpc_job=\"{job}\"}} > 90");
    let seen = wait_for("the job's GPUs are busy", PATIENCE, || {
        let seen = prometheus.query(&busy);
        (seen.len() == 2).then_some(seen)
    });
    let labels = &seen[0]["metric"];
    let node = labels["Hostname"].as_str().unwrap();
    assert!(["n1", "n2"].contains(&node), "{labels}");
    assert_eq!(labels["modelName"], "simulated h100");
    assert!(labels["UUID"].as_str().unwrap().starts_with("SIM-h100-"), "{labels}");
    assert!(labels["device"].as_str().unwrap().starts_with("simulated"), "{labels}");
    assert!(labels["gpu"].as_str().unwrap().parse::<u16>().is_ok(), "{labels}");
    let watts = prometheus.query(&format!("sum(DCGM_FI_DEV_POWER_USAGE{{hpc_job=\"{job}\"}})"));
    assert!(value(&watts[0]) > 800.0, "two busy cards of 700 W: {watts:?}");
    let running = prometheus.query("tutti_tasks{state=\"running\"}");
    assert_eq!(running.iter().map(value).collect::<Vec<_>>(), [1.0]);
    check_text(&endpoint, &secret);
}

/// What promtool has to say is about DCGM's names and labels, which are not ours to choose.
fn check_text(endpoint: &str, secret: &str) {
    let bearer = format!("Authorization: Bearer {secret}");
    let asked = Command::new("curl")
        .args(["-sSf", "-H", &bearer, &format!("http://{endpoint}/metrics")])
        .output()
        .expect("curl can be started");
    assert!(asked.status.success() && asked.stdout.starts_with(b"# HELP"), "{asked:?}");
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool can be started");
    promtool.stdin.take().unwrap().write_all(&asked.stdout).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    let said = [checked.stdout, checked.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    // 3: it reads, and some names are not what promtool would choose.
    assert!(matches!(checked.status.code(), Some(0 | 3)), "{said}");
    let dcgms = |line: &str| line.starts_with("DCGM_") || line.contains("_gpu_");
    let ours: Vec<&str> = said.lines().filter(|line| !dcgms(line)).collect();
    assert!(ours.iter().all(|line| line.trim().is_empty()), "{ours:?}");
}

#[test]
fn people_see_what_gpus_do() {
    let cluster = cluster(1);
    let job = training(&cluster);
    let shown = wait_for("the job's GPUs are busy", PATIENCE, || {
        let done = cluster.cli(&["nodes", "--gpus"]).call();
        assert_eq!(done.code, 0, "{}", done.err);
        let busy =
            |line: &&str| line.contains("W") && line.trim_end().ends_with(&format!(" {job}"));
        (done.out.lines().filter(busy).count() == 2).then_some(done.out)
    });
    assert!(shown.contains("2 of 8 GPUs (simulated) in use"), "{shown}");
    let json = cluster.cli(&["nodes", "--gpus", "--json", "n1"]).call();
    let gpus: Vec<Value> = serde_json::from_str(&json.out).unwrap();
    assert_eq!(gpus.len(), 8);
    assert!(gpus.iter().all(|gpu| gpu["sample"]["temp"].is_i64()), "{}", json.out);
    let wrong = cluster.cli(&["nodes", "--gpus", "n7"]).call();
    assert!(wrong.code != 0 && wrong.err.contains("n7"), "{}", wrong.err);
}
