//! How many jobs per second the controller alone can take and finish, with fsync, and how quick a
//! listing is behind a long queue. Agents only pretend, so this is an upper bound for a cluster.
//!
//! `cargo run --release -p tutti-controller --example throughput -- [jobs] [pending]`

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::Cluster;
use common::agent::{FakeAgent, Ranks};
use tutti_model::JobSpec;
use tutti_wire::api::{JobQuery, Submit};
use tutti_wire::client::{Client, ClusterRef};

const CLIENTS: usize = 8;
const NODES: usize = 16;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut numbers = std::env::args().skip(1).map(|a| a.parse::<usize>());
    let jobs = numbers.next().transpose()?.unwrap_or(2000);
    let pending = numbers.next().transpose()?.unwrap_or(10_000);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let cluster = Cluster::start().await;
        let mut agents = Vec::new();
        for n in 0..NODES {
            let identity = cluster.join(&format!("n{n}")).await;
            agents.push(FakeAgent::start(cluster.addr(), identity, 8, Ranks::Finish).await);
        }
        let client = || {
            let token = cluster.admin.parse()?;
            Ok::<_, Failure>(Client::connect(&ClusterRef::new(&cluster.addr().to_string(), token)?))
        };
        let began = Instant::now();
        let mut threads = Vec::new();
        for _ in 0..CLIENTS {
            let client = client()?;
            threads.push(tokio::task::spawn_blocking(move || submit(&client, jobs / CLIENTS)));
        }
        let mut last = None;
        for thread in threads {
            last = last.max(thread.await??);
        }
        report("submitted", jobs, began.elapsed());
        let client = client()?;
        let client = tokio::task::spawn_blocking(move || {
            finish(&client)?;
            report("finished", jobs, began.elapsed());
            listing(&client, pending)?;
            Ok::<_, Failure>(client)
        })
        .await??;
        drop(client);
        drop(agents);
        cluster.stop().await;
        Ok(())
    })
}

#[expect(clippy::print_stdout, reason = "the numbers are what this program is for")]
fn report(what: &str, count: usize, took: Duration) {
    println!("{what}: {count} in {took:.2?}, {:.0}/s", count as f64 / took.as_secs_f64());
}

fn job(hold: bool) -> Submit {
    let mut spec = JobSpec::shell("true");
    spec.gpus_per_node = "1".parse().ok();
    spec.hold = hold;
    Submit { spec, user: None, key: None }
}

fn submit(client: &Client, count: usize) -> Result<Option<tutti_model::TaskId>, Failure> {
    let mut last = None;
    for _ in 0..count {
        last = Some(client.submit(&job(false))?.id);
    }
    Ok(last)
}

fn finish(client: &Client) -> Result<(), Failure> {
    let active = JobQuery { state: Some("active".into()), limit: Some(1), ..JobQuery::default() };
    while let Some(row) = client.jobs(&active)?.jobs.first() {
        client.wait(row.id, 10)?;
    }
    Ok(())
}

fn listing(client: &Client, pending: usize) -> Result<(), Failure> {
    let began = Instant::now();
    for _ in 0..pending.div_ceil(5000) {
        client.submit_batch((0..5000).map(|_| job(true)).collect())?;
    }
    report("batched", pending, began.elapsed());
    let page = JobQuery { limit: Some(100), ..JobQuery::default() };
    let active = JobQuery { state: Some("active".into()), ..page.clone() };
    let newest = JobQuery { newest: true, ..active.clone() };
    let named = JobQuery { name: Some("nobody has this".into()), ..page.clone() };
    for (what, query) in
        [("page", page), ("active page", active), ("newest page", newest), ("vain search", named)]
    {
        let began = Instant::now();
        let rounds = 20;
        for _ in 0..rounds {
            client.jobs(&query)?;
        }
        report(what, rounds, began.elapsed());
    }
    Ok(())
}
