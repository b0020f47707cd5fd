//! A plan as JSON: one stable shape.

use serde_json::{Map, Value, json};
use tutti_planner::{Candidate, usable_gb};

use super::Plan;

impl Plan<'_> {
    pub fn json(&self) -> Value {
        let best = &self.answer.best;
        let mut out = Map::new();
        let mut set = |key: &str, value: Value| out.insert(key.to_owned(), value);
        set("model", json!(self.arch));
        set("params", json!(self.arch.params()));
        set("workload", json!(self.workload));
        set("cluster", json!(self.cluster));
        set("plan", candidate(best));
        set("usable_gb", json!(usable_gb(&self.cluster.gpu)));
        set("currency", json!(self.currency));
        set("run", json!(self.run));
        let runners_up = self.answer.runners_up.iter().map(|r| {
            let mut loser = candidate(&r.candidate);
            loser["loses"] = json!(r.loses);
            loser
        });
        set("runners_up", runners_up.collect());
        set("what_if", json!(self.what_ifs));
        let fewer = self.answer.faster_with_fewer;
        set(
            "faster_with_fewer",
            json!(fewer.map(|(gpus, s)| json!({ "gpus": gpus, "step_time_s": s }))),
        );
        set("considered", json!(self.answer.considered));
        set("fitting", json!(self.answer.fitting));
        Value::Object(out)
    }
}

/// A layout with its figures.
pub fn candidate(c: &Candidate) -> Value {
    let parts: Map<String, Value> = c
        .estimate
        .time
        .parts
        .iter()
        .filter_map(|(part, s)| Some((json!(part).as_str()?.to_owned(), json!(s))))
        .collect();
    json!({
        "layout": c.layout,
        "gpus": c.gpus,
        "memory_gb": c.estimate.memory.total(),
        "memory": c.estimate.memory,
        "step_time_s": c.estimate.time.total(),
        "time": parts,
        "tokens_per_s": c.tokens_per_s,
        "mfu": c.mfu,
        "cost_per_step": c.cost_per_step,
    })
}
