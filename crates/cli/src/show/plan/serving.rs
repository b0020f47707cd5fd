//! `tutti plan --task inference`.

use serde_json::{Value, json};
use tutti_planner::words::seconds;
use tutti_planner::{Serving, ServingPlan};

use super::{bar, billions, money};
use crate::show::{count, thousands};
use crate::style::{Ink, Style};

pub struct Served<'a> {
    pub asked: &'a Serving<'a>,
    pub plan: &'a ServingPlan,
    pub currency: &'a str,
}

impl Served<'_> {
    pub fn json(&self) -> Value {
        let Serving { arch, cluster, precision, prompt, output, .. } = self.asked;
        json!({
            "model": arch,
            "params": arch.params(),
            "cluster": cluster,
            "precision": precision,
            "prompt": prompt,
            "output": output,
            "plan": self.plan,
            "currency": self.currency,
        })
    }
}

/// Columns of the bar.
const BAR: usize = 24;

pub fn text(served: &Served<'_>, style: Style) -> String {
    let mut lines = vec![headline(served, style)];
    let mut add = |key: &str, value: String| lines.push(format!("  {key:<11}{value}"));
    add("memory", memory(served.plan));
    add("answers", answers(served));
    add("writes", writes(served.plan));
    if let Some(load) = load(served) {
        add("load", load);
    }
    if let Some(price) = served.plan.price_per_million_tokens {
        let busy = "for a million tokens that are written, while it is busy";
        add("price", format!("{} {busy}", money(price, served.currency)));
    }
    for (n, other) in served.plan.others.iter().enumerate() {
        add(if n == 0 { "instead" } else { "" }, other.clone());
    }
    lines.join("\n")
}

fn headline(served: &Served<'_>, style: Style) -> String {
    let (asked, plan) = (served.asked, served.plan);
    let split = match (plan.tp, plan.pp) {
        (1, 1) => "one GPU each".to_owned(),
        (tp, 1) => format!("tp {tp} each"),
        (tp, pp) => format!("tp {tp} × pp {pp} each"),
    };
    format!(
        "serve {} ({} weights) on {}: {} of {} {}, {}",
        style.paint(Ink::Bold, &asked.arch.name),
        billions(asked.arch.params()),
        asked.cluster.name,
        thousands(plan.gpus.into()),
        thousands(asked.cluster.gpus().into()),
        asked.cluster.gpu.name,
        style.paint(Ink::Bold, &format!("{}, {split}", count(plan.replicas.into(), "replica"))),
    )
}

/// Of one replica.
fn memory(plan: &ServingPlan) -> String {
    let requests = plan.concurrency as f64 * plan.kv_gb_per_request;
    let room = plan.weights_gb + plan.kv_room_gb;
    format!(
        "weights {:.1} GB, {} with {:.2} GB each, of {room:.1} GB in a replica  {}",
        plan.weights_gb,
        count(plan.concurrency, "request"),
        plan.kv_gb_per_request,
        bar::plain((plan.weights_gb + requests) / room.max(f64::MIN_POSITIVE), BAR)
    )
}

fn answers(served: &Served<'_>) -> String {
    let plan = served.plan;
    let then = plan.tpot_s.map_or_else(String::new, |s| format!(", then one each {}", seconds(s)));
    format!(
        "first token after {}{then} ({} tokens in, {} out)",
        seconds(plan.ttft_s),
        thousands(served.asked.prompt),
        thousands(served.asked.output)
    )
}

fn writes(plan: &ServingPlan) -> String {
    format!(
        "{} tokens/s, {:.1} requests/s; one replica {} tokens/s",
        thousands(plan.tokens_per_s.round() as u64),
        plan.requests_per_s,
        thousands(plan.replica_tokens_per_s.round() as u64)
    )
}

fn load(served: &Served<'_>) -> Option<String> {
    let (asked, plan) = (served.asked.requests_per_s?, served.plan);
    let (replicas, gpus) = (plan.replicas_needed?, plan.gpus_needed?);
    let there = served.asked.cluster.gpus();
    let lacks = match gpus.checked_sub(there) {
        None | Some(0) => String::new(),
        Some(more) => format!("; {more} more than there are"),
    };
    let (replicas, gpus) = (count(replicas.into(), "replica"), count(gpus.into(), "GPU"));
    Some(format!("{asked} requests/s need {replicas} on {gpus}{lacks}"))
}
