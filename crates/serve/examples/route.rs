//! A router for `bench/router` and `bench/prefix`: `route LISTEN THREADS REPLICA…` with an endpoint `m` on
//! these replicas and another one beside it, so that the request's `model` must be read. `TUTTI_POLICY` names
//! another policy than least outstanding, and `TUTTI_METRICS_MS` another time between looks at the replicas'
//! metrics, for replicas whose time runs faster than ours.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tutti_model::{
    Access, EndpointRoute, Generation, JobId, ReplicaRoute, RetryRule, RoutePolicy, RouteTable,
    Span,
};
use tutti_serve::{Router, RouterConfig};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let listen: SocketAddr = args[0].parse().expect("an address such as 127.0.0.1:8000");
    let threads = args[1].parse().expect("a number of threads");
    let replicas = args[2..].iter().enumerate().map(|(n, address)| ReplicaRoute {
        job: JobId(n as u64 + 1),
        generation: Generation(1),
        revision: 1,
        address: address.clone(),
        draining: false,
        health: None,
    });
    let table = RouteTable {
        version: 1,
        endpoints: vec![endpoint("m", replicas.collect()), endpoint("other", Vec::new())],
        keys: Vec::new(),
    };
    let (_tables, receiver) = watch::channel(Arc::new(table));
    let mut config = RouterConfig { threads, ..RouterConfig::new(listen) };
    if let Ok(ms) = std::env::var("TUTTI_METRICS_MS") {
        config.timeouts.metrics = Duration::from_millis(ms.parse().expect("milliseconds"));
    }
    let _handle = Router::start(config, receiver).expect("the router starts");
    loop {
        std::thread::park();
    }
}

fn policy() -> RoutePolicy {
    let Ok(name) = std::env::var("TUTTI_POLICY") else { return RoutePolicy::LeastOutstanding };
    let known = RoutePolicy::ALL.into_iter().find(|policy| policy.as_str() == name);
    known.unwrap_or_else(|| panic!("there is no policy '{name}'"))
}

fn endpoint(name: &str, replicas: Vec<ReplicaRoute>) -> EndpointRoute {
    EndpointRoute {
        name: name.to_owned(),
        models: Vec::new(),
        policy: policy(),
        sticky_header: "x-session-id".to_owned(),
        health: "/health".to_owned(),
        slow_start: Span(0),
        max_in_flight: None,
        target_in_flight: 16,
        queue: 1000,
        queue_wait: Span::secs(60),
        hold: Span::secs(60),
        access: Access::Keys,
        retry: RetryRule::Safe,
        replicas,
        split: Vec::new(),
    }
}
