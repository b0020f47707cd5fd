//! A server: how much of the cluster, how many requests at once, how fast and how dear.

use tutti_planner::emit::{self, Server};
use tutti_planner::{Arch, Serving, ServingPlan, serve, usual_precision};

use super::train::hand_over;
use super::{PlanArgs, input, no_plan, place};
use crate::fail::Fail;
use crate::show::plan::serving::{self, Served};
use crate::style::Style;
use crate::terminal;

const PROMPT: u64 = 1024;
const OUTPUT: u64 = 256;

pub fn run(cluster: Option<&str>, args: &PlanArgs) -> Result<(), Fail> {
    let arch = input::arch(args)?;
    let place = place::find(cluster, args)?;
    let ms = |span: tutti_model::Span| span.0 as f64;
    let asked = Serving {
        arch: &arch,
        cluster: &place.cluster,
        precision: args.precision.unwrap_or_else(|| usual_precision(&place.cluster.gpu)),
        prompt: args.serving.prompt.unwrap_or(PROMPT),
        output: args.serving.output.unwrap_or(OUTPUT),
        ttft_ms: args.serving.ttft.map(ms),
        tpot_ms: args.serving.tpot.map(ms),
        requests_per_s: args.serving.rps,
        tp: args.pins.tp,
        pp: args.pins.pp,
    };
    let plan = serve(&asked).map_err(|e| no_plan(&e))?;
    if args.write.is_some() {
        return write(args, &arch, &asked, &plan);
    }
    let served = Served { asked: &asked, plan: &plan, currency: &place.currency };
    if args.json {
        return terminal::json(&served.json());
    }
    terminal::say(&serving::text(&served, Style::of_stdout()));
    Ok(())
}

fn write(
    args: &PlanArgs,
    arch: &Arch,
    asked: &Serving<'_>,
    plan: &ServingPlan,
) -> Result<(), Fail> {
    // A directory with a config.json is what vLLM loads; the file alone is not.
    let given = args.model.as_deref().unwrap_or(&arch.name);
    let server = Server {
        model: given.strip_suffix("/config.json").unwrap_or(given),
        precision: asked.precision,
        tp: plan.tp,
        pp: plan.pp,
        experts: arch.moe.is_some(),
        concurrency: plan.concurrency,
        context: asked.prompt + asked.output,
        replicas: plan.replicas,
    };
    hand_over(args, &emit::vllm(&server))
}
