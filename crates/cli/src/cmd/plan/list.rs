//! `tutti plan --list`.

use tutti_planner::{catalogue, names};

use super::{Listed, PlanArgs};
use crate::fail::Fail;
use crate::show::plan::{billions, list};
use crate::show::table::{plain, terminal_width};
use crate::style::Style;
use crate::terminal;

pub fn run(args: &PlanArgs) -> Result<(), Fail> {
    match args.list {
        Some(Listed::Models) => models(args.json),
        Some(Listed::Clusters) => clusters(args.json),
        Some(Listed::Gpus) => gpus(args.json),
        None => Ok(()),
    }
}

fn say(head: &[&str], rows: Vec<Vec<String>>) -> Result<(), Fail> {
    let rows = rows.into_iter().map(|row| row.into_iter().map(plain).collect());
    terminal::say(&list(head, rows, Style::of_stdout(), terminal_width()));
    Ok(())
}

fn models(json: bool) -> Result<(), Fail> {
    let all: Vec<_> = names::all().iter().map(|named| named.arch()).collect();
    if json {
        return terminal::json(&all);
    }
    let row = |arch: &tutti_planner::Arch| {
        let active = arch.moe.map_or_else(|| "-".to_owned(), |_| billions(arch.active_params()));
        vec![
            arch.name.clone(),
            billions(arch.params()),
            active,
            arch.layers.to_string(),
            arch.hidden.to_string(),
            arch.heads.to_string(),
        ]
    };
    say(
        &["NAME", ">WEIGHTS", ">ACTIVE", ">LAYERS", ">HIDDEN", ">HEADS"],
        all.iter().map(row).collect(),
    )
}

fn clusters(json: bool) -> Result<(), Fail> {
    let all: Vec<_> = catalogue::machines().filter_map(|name| catalogue::find(name).ok()).collect();
    if json {
        return terminal::json(&all);
    }
    let row = |c: &tutti_planner::Cluster| {
        vec![
            c.name.clone(),
            format!("{} × {}", c.gpus_per_node, c.gpu.name),
            c.island.to_string(),
            format!("{:.0} GB/s", c.island_gbps),
            format!("{:.0} Gbit/s", c.nic_gbps),
            c.price_per_gpu_hour.map_or_else(|| "-".to_owned(), |p| format!("{p:.2}")),
        ]
    };
    let head =
        ["NAME", "GPUS OF A NODE", ">ISLAND", ">INSIDE", ">NETWORK PER GPU", ">USD PER GPU-HOUR"];
    say(&head, all.iter().map(row).collect())
}

fn gpus(json: bool) -> Result<(), Fail> {
    let machine = |name: &&str| catalogue::machines().any(|m| m == *name);
    let kinds = catalogue::names().into_iter().filter(|name| !machine(name));
    let all: Vec<tutti_planner::Gpu> = kinds.filter_map(catalogue::gpu).collect();
    if json {
        return terminal::json(&all);
    }
    let some = |tflops: Option<f64>| tflops.map_or_else(|| "-".to_owned(), |t| format!("{t:.0}"));
    let row = |g: &tutti_planner::Gpu| {
        vec![
            g.name.clone(),
            format!("{:.0} GB", g.memory_gb),
            format!("{:.0} GB/s", g.hbm_gbps),
            format!("{:.0}", g.bf16_tflops),
            some(g.fp8_tflops),
            some(g.fp4_tflops),
        ]
    };
    let head = ["NAME", ">MEMORY", ">BANDWIDTH", ">BF16 TFLOP/S", ">FP8", ">FP4"];
    say(&head, all.iter().map(row).collect())
}
