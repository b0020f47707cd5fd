//! Our own trace: CSV with a head, in any order of columns.
//!
//! ```text
//! name,submit_s,duration_s,gpus,nodes,gpus_per_node,gpu_model,gpu_share,cpus_per_node,mem_per_node,
//! user,team,priority,class,time_limit_s,topology,min_nodes,max_nodes
//! ```
//! Only `submit_s` and `duration_s` must be there; an empty field counts as not given. `gpus` is
//! always the total: with `nodes` it must divide evenly, with a model and without `nodes` all are
//! on one node.

use std::str::FromStr;

use tutti_model::{Elastic, GpuRequest, JobSpec, Topology};

use super::{BadLine, Manner, Problem, Row, Table, Trace, TraceJob, spec_problem};

const COLUMNS: [&str; 18] = [
    "name",
    "submit_s",
    "duration_s",
    "gpus",
    "nodes",
    "gpus_per_node",
    "gpu_model",
    "gpu_share",
    "cpus_per_node",
    "mem_per_node",
    "user",
    "team",
    "priority",
    "class",
    "time_limit_s",
    "topology",
    "min_nodes",
    "max_nodes",
];

pub fn read(text: &str) -> Result<Trace, BadLine> {
    let table = Table::new(text, ',')?;
    table.need(&["submit_s", "duration_s"])?;
    if let Some(unknown) = table.names().find(|n| !COLUMNS.contains(n)) {
        let problem = Problem::UnknownColumn(unknown.to_owned(), COLUMNS.join(", "));
        return Err(BadLine { line: 1, problem });
    }
    let mut jobs = Vec::new();
    for row in table.rows() {
        jobs.push(job(&row?)?);
    }
    Ok(Trace::sorted(jobs, 0))
}

fn job(row: &Row<'_>) -> Result<TraceJob, BadLine> {
    let text = |column| Some(row.text(column)).filter(|t| !t.is_empty()).map(str::to_owned);
    let mut spec = JobSpec::shell("trace");
    spec.name = text("name");
    spec.nodes = row.count_if_any("nodes")?;
    spec.gpu_share = share(row)?;
    gpus(row, &mut spec)?;
    spec.cpus_per_node = row.count_if_any("cpus_per_node")?;
    spec.mem_per_node = parsed(row, "mem_per_node")?;
    spec.team = text("team");
    spec.class = text("class");
    spec.priority = parsed(row, "priority")?.unwrap_or_default();
    spec.topology = topology(row)?;
    spec.elastic = elastic(row)?;
    if row.number_if_any::<f64>("time_limit_s")?.is_some() {
        spec.time = Some(row.seconds("time_limit_s")?);
    }
    if let Some(problem) = spec_problem(&spec) {
        return Err(row.bad(problem));
    }
    Ok(TraceJob {
        name: text("name").unwrap_or_else(|| format!("line-{}", row.line)),
        submit: row.time("submit_s")?,
        run: row.seconds("duration_s")?,
        user: text("user").unwrap_or_else(|| "trace".to_owned()),
        spec,
        manner: Manner::default(),
    })
}

/// Most GPUs that a row with a model and without nodes may mean: one node of the usual size.
const NODE_GPUS: u32 = 8;

fn gpus(row: &Row<'_>, spec: &mut JobSpec) -> Result<(), BadLine> {
    let bad = |problem: String| Err(row.bad(Problem::Spec(problem)));
    let model = Some(row.text("gpu_model")).filter(|m| !m.is_empty());
    let model = model.map(str::to_ascii_lowercase);
    let (total, each) = (row.count_if_any("gpus")?, row.count_if_any("gpus_per_node")?);
    let count = match (total, each, spec.nodes) {
        (Some(_), Some(_), _) => {
            return bad("gpus is the total and excludes gpus_per_node".to_owned());
        }
        (None, Some(each), _) => each,
        (Some(total), None, Some(nodes @ 1..)) if total.is_multiple_of(nodes) => total / nodes,
        (Some(total), None, Some(nodes)) => {
            return bad(format!("gpus is the total, and {total} do not divide over {nodes} nodes"));
        }
        (Some(total), None, None) if model.is_none() => {
            spec.gpus = Some(total);
            return Ok(());
        }
        (Some(total @ ..=NODE_GPUS), None, None) => total,
        (Some(total), None, None) => {
            let problem = "with gpu_model on more than one node, say nodes or gpus_per_node";
            return bad(format!("{total} gpus: {problem}"));
        }
        // A part of one GPU, of this model.
        (None, None, _) if model.is_some() && spec.gpu_share.is_some() => 1,
        (None, None, _) if model.is_some() => {
            return bad("gpu_model needs gpus, gpus_per_node or gpu_share".to_owned());
        }
        (None, None, _) => return Ok(()),
    };
    spec.gpus_per_node = Some(GpuRequest { model, count });
    Ok(())
}

fn parsed<T: FromStr>(row: &Row<'_>, column: &str) -> Result<Option<T>, BadLine>
where
    T::Err: std::fmt::Display,
{
    let value = row.text(column);
    if value.is_empty() {
        return Ok(None);
    }
    let bad = |e: T::Err| row.bad(Problem::Spec(format!("{column}: {e}")));
    value.parse().map(Some).map_err(bad)
}

fn share(row: &Row<'_>) -> Result<Option<f64>, BadLine> {
    let share: Option<f64> = row.number_if_any("gpu_share")?;
    if share.is_some_and(|s| !(0.001..=1.0).contains(&s)) {
        let (column, value) = ("gpu_share".to_owned(), row.text("gpu_share").to_owned());
        return Err(row.bad(Problem::NotA { column, value, wanted: "from 0.001 to 1" }));
    }
    Ok(share)
}

fn topology(row: &Row<'_>) -> Result<Option<Topology>, BadLine> {
    use Topology::{Any, Island, Node, Rack, Rail, Site};
    let value = row.text("topology");
    if value.is_empty() {
        return Ok(None);
    }
    let known = [Island, Node, Rack, Rail, Site, Any].into_iter().find(|t| t.as_str() == value);
    known.map(Some).ok_or_else(|| {
        let (column, value) = ("topology".to_owned(), value.to_owned());
        let wanted = "one of island, node, rack, rail, site, any";
        row.bad(Problem::NotA { column, value, wanted })
    })
}

fn elastic(row: &Row<'_>) -> Result<Option<Elastic>, BadLine> {
    match (row.count_if_any("min_nodes")?, row.count_if_any("max_nodes")?) {
        (None, None) => Ok(None),
        (Some(min_nodes), Some(max_nodes)) => Ok(Some(Elastic { min_nodes, max_nodes })),
        _ => Err(row.bad(Problem::Spec("min_nodes and max_nodes go together".to_owned()))),
    }
}
