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
        set("run", self.run.map_or(Value::Null, run));
        let runners_up = self.answer.runners_up.iter().map(|r| {
            let mut loser = candidate(&r.candidate);
            loser["loses"] = json!(r.loses);
            loser
        });
        set("runners_up", runners_up.collect());
        let what_ifs = self.what_ifs.iter().map(|w| {
            json!({ "change": w.change, "step_time_s": w.step_s, "ratio": w.ratio,
                    "cost_ratio": w.cost_ratio, "note": w.note })
        });
        set("what_if", what_ifs.collect());
        set("considered", json!(self.answer.considered));
        set("fitting", json!(self.answer.fitting));
        Value::Object(out)
    }
}

fn candidate(c: &Candidate) -> Value {
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

fn run(run: &tutti_planner::Run) -> Value {
    json!({
        "steps": run.steps,
        "tokens": run.tokens,
        "seconds": run.seconds,
        "effective_seconds": run.effective_seconds,
        "effective": run.effective,
        "gpu_hours": run.gpu_hours,
        "price": run.price,
        "checkpoint_gb": run.checkpoint_gb,
        "checkpoint_every_s": run.checkpoint_every_s,
        "mttf_s": run.mttf_s,
    })
}
