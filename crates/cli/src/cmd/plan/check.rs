//! Whether a job file's `[plan]` fits the GPUs that the job asks for: before submission, and as a warning after it.

use serde::Serialize;
use tutti_model::{DeclaredPlan, JobSpec};
use tutti_planner::{
    Arch, Cluster, Gpu, Layout, Precision, Recompute, Setup, Stack, Task, Workload, catalogue,
    estimate, legal, usable_gb,
};
use tutti_wire::api::GpuRow;
use tutti_wire::client::Client;

use super::{PlanArgs, input, place};
use crate::cmd::job_args::word;
use crate::cmd::submit;
use crate::fail::{Fail, IMPOSSIBLE, UNREACHABLE};
use crate::show::count;
use crate::show::plan::{percent, step_time};
use crate::{session, terminal};

/// What was found, if nothing speaks against it.
#[derive(Debug, PartialEq, Serialize)]
pub struct Fit {
    pub memory_gb: f64,
    pub usable_gb: f64,
    pub gpu: String,
    /// That the plan uses.
    pub gpus: u32,
    /// That the job asks for.
    pub asked: u32,
    /// Where the GPU was looked up.
    pub on: String,
    /// By the estimate, and as the plan says.
    pub step_time_s: f64,
    pub planned_step_s: Option<f64>,
    /// What is odd about it, a sentence each.
    pub warnings: Vec<String>,
}

/// Where it was looked up if nothing else is said.
const RUNNING: &str = "the running cluster";
/// Of the planned time of a step: estimates themselves are not much better.
const FAR: f64 = 0.2;

pub fn run(cluster: Option<&str>, args: &PlanArgs) -> Result<(), Fail> {
    let Some(path) = &args.check else { return Ok(()) };
    let spec = submit::read(path)?.spec;
    let plan = spec.plan.as_deref().ok_or_else(|| {
        Fail::usage(format!("{} has no [plan]", path.display()))
            .hint("tutti plan MODEL … --write job writes one")
    })?;
    let planned = Planned::of(plan)?;
    let (there, on) = match &args.on {
        Some(on) => (place::named(on)?.cluster, on.clone()),
        None => running_or_listed(cluster, &spec, &planned)?,
    };
    let fit = planned.fit(&spec, &there, on)?;
    if args.json {
        return terminal::json(&fit);
    }
    terminal::say(&fit.sentence());
    fit.warnings.iter().for_each(|warning| terminal::warn(warning));
    Ok(())
}

impl Fit {
    fn sentence(&self) -> String {
        let planned = match self.planned_step_s {
            Some(s) => format!(", planned {}", step_time(s)),
            None => String::new(),
        };
        format!(
            "fits: {:.1} of {:.1} GB on each of {} {} ({}); a step takes {}{planned}",
            self.memory_gb,
            self.usable_gb,
            self.gpus,
            self.gpu,
            self.on,
            step_time(self.step_time_s)
        )
    }

    fn doubts(&self) -> Vec<String> {
        let Fit { gpus, asked, .. } = self;
        let idle = asked.checked_sub(*gpus).filter(|idle| *idle > 0).map(|idle| {
            format!(
                "it asks for {} and is planned for {gpus}: {idle} would have nothing to do",
                count((*asked).into(), "GPU")
            )
        });
        let ratio = self.planned_step_s.map(|planned| self.step_time_s / planned);
        let far = ratio.filter(|ratio| (ratio - 1.0).abs() > FAR).zip(self.planned_step_s);
        let far = far.map(|(ratio, planned)| {
            let (says, takes) = (step_time(planned), step_time(self.step_time_s));
            format!("its step_time_s is {says}, and the estimate is {takes} ({})", percent(ratio))
        });
        idle.into_iter().chain(far).collect()
    }
}

/// What `--check` says against a job that was just submitted. Nothing where the cluster can't say: the job is in.
pub fn warnings(client: &Client, spec: &JobSpec) -> Vec<String> {
    let Some(plan) = spec.plan.as_deref() else { return Vec::new() };
    let found = against(client, spec, plan);
    found.into_iter().map(|why| format!("its [plan]: {why}")).collect()
}

fn against(client: &Client, spec: &JobSpec, plan: &DeclaredPlan) -> Vec<String> {
    let planned = match Planned::of(plan) {
        Ok(planned) => planned,
        Err(fail) => return vec![fail.message],
    };
    // What can't be judged is no reason to frighten anybody.
    let Ok(Some(there)) = on_running(client, spec, &planned) else { return Vec::new() };
    match planned.fit(spec, &there, RUNNING.to_owned()) {
        Ok(fit) => fit.warnings,
        Err(fail) => vec![fail.message],
    }
}

/// The words of a `[plan]` as the planner's.
struct Planned {
    arch: Arch,
    workload: Workload,
    layout: Layout,
    step_time_s: Option<f64>,
}

impl Planned {
    fn of(plan: &DeclaredPlan) -> Result<Planned, Fail> {
        let wrong = |key: &str, why: String| Fail::usage(format!("plan.{key}: {why}"));
        let task = match (plan.task.as_str(), plan.lora_rank) {
            ("pretrain", None) => Task::Pretrain,
            ("finetune", None) => Task::Finetune,
            ("lora", rank) => Task::Lora { rank: rank.unwrap_or(input::LORA_RANK) },
            ("pretrain" | "finetune", Some(_)) => {
                return Err(wrong("lora_rank", "goes with task = \"lora\"".to_owned()));
            }
            (other, _) => {
                let why = format!("'{other}' is no task: write pretrain, finetune or lora");
                return Err(wrong("task", why));
            }
        };
        let arch = input::named(&plan.model)
            .map_err(|e| Fail { message: format!("plan.model: {}", e.message), ..e })?;
        Ok(Planned {
            arch,
            workload: Workload {
                task,
                precision: word::<Precision>(&plan.precision).map_err(|e| wrong("precision", e))?,
                seq: plan.seq,
                global_batch: plan.global_batch,
                tokens: None,
            },
            layout: Layout {
                tp: plan.tp,
                pp: plan.pp,
                vp: plan.vp,
                cp: plan.cp,
                ep: plan.ep,
                dp: plan.dp,
                micro_batch: plan.micro_batch,
                sharding: input::zero(&plan.zero.to_string()).map_err(|e| wrong("zero", e))?,
                sequence_parallel: plan.sequence_parallel,
                recompute: word::<Recompute>(&plan.recompute).map_err(|e| wrong("recompute", e))?,
            },
            step_time_s: plan.step_time_s.filter(|s| *s > 0.0),
        })
    }

    fn gpus(&self) -> u64 {
        let l = &self.layout;
        [l.tp, l.pp, l.cp, l.dp].iter().fold(1, |all: u64, n| all.saturating_mul(u64::from(*n)))
    }

    /// Fails with 5 if it can't run there.
    fn fit(&self, spec: &JobSpec, there: &Cluster, on: String) -> Result<Fit, Fail> {
        let no = |why: String| Fail::new(why).exit(IMPOSSIBLE);
        let asked = asked(spec);
        if self.gpus() > u64::from(asked) {
            let way = "ask for more, or plan for fewer";
            let needs = count(self.gpus(), "GPU");
            return Err(no(format!("it needs {needs} and the job asks for {asked}")).hint(way));
        }
        legal(&self.arch, &self.workload, there, &self.layout).map_err(|e| no(e.to_string()))?;
        let setup = Setup {
            arch: &self.arch,
            workload: &self.workload,
            cluster: there,
            layout: &self.layout,
            stack: Stack::Current,
        };
        let estimate = estimate(&setup);
        let (needs, has) = (estimate.memory.total(), usable_gb(&there.gpu));
        let gpu = there.gpu.name.clone();
        if needs > has {
            let why = format!(
                "does not fit: it needs {needs:.1} GB on each GPU, and of a {gpu} {has:.1} GB can be used"
            );
            return Err(no(why).hint("tutti plan finds a layout that does"));
        }
        let mut fit = Fit {
            memory_gb: needs,
            usable_gb: has,
            gpu,
            gpus: self.layout.gpus(),
            asked,
            on,
            step_time_s: estimate.time.total(),
            planned_step_s: self.step_time_s,
            warnings: Vec::new(),
        };
        fit.warnings = fit.doubts();
        Ok(fit)
    }
}

/// GPUs that the job gets; of an elastic one, on as many nodes as it may have.
fn asked(spec: &JobSpec) -> u32 {
    let nodes = spec.elastic.as_ref().map_or(spec.nodes.unwrap_or(1), |e| e.max_nodes);
    let each = spec.gpus_per_node.as_ref().map_or(0, |g| g.count);
    spec.gpus.unwrap_or(nodes.saturating_mul(each))
}

/// Only a cluster that does not answer is replaced by the catalogue.
fn running_or_listed(
    cluster: Option<&str>,
    spec: &JobSpec,
    planned: &Planned,
) -> Result<(Cluster, String), Fail> {
    let found = session::open(cluster).and_then(|client| on_running(&client, spec, planned));
    match found {
        Ok(Some(found)) => Ok((found, RUNNING.to_owned())),
        Err(fail) if fail.exit == UNREACHABLE => listed(spec, planned, fail),
        Err(fail) => Err(fail),
        Ok(None) => {
            let wanted = wanted(spec).unwrap_or("GPU");
            Err(Fail::new(format!("the running cluster has no {wanted} that the job could have"))
                .hint("--on CLUSTER checks it for another")
                .exit(IMPOSSIBLE))
        }
    }
}

fn wanted(spec: &JobSpec) -> Option<&str> {
    spec.gpus_per_node.as_ref().and_then(|g| g.model.as_deref())
}

fn listed(spec: &JobSpec, planned: &Planned, fail: Fail) -> Result<(Cluster, String), Fail> {
    let Some(model) = wanted(spec) else {
        return Err(fail.hint("the job does not say which GPUs it wants, so --on CLUSTER must"));
    };
    terminal::complain(&format!("note: {}; the catalogue's {model} is taken", fail.message));
    let first = model.split('|').next().unwrap_or(model);
    let mut found = listed_cluster(first, spec, planned)?;
    if let Some(least) = spec.gpu_mem
        && let Some(gpu) = catalogue::gpu_with_memory(first, place::in_gb(least))
    {
        found.gpu = gpu;
    }
    Ok((found, "catalogue".to_owned()))
}

fn listed_cluster(model: &str, spec: &JobSpec, planned: &Planned) -> Result<Cluster, Fail> {
    let found = catalogue::find(model)
        .map_err(|e| Fail::usage(e.to_string()).hint("--on FILE.toml describes a cluster"))?;
    Ok(sized(found, spec, planned))
}

/// As many nodes of what the job asks for as the plan needs.
fn sized(mut found: Cluster, spec: &JobSpec, planned: &Planned) -> Cluster {
    if let Some(asked) = spec.gpus_per_node.as_ref().filter(|g| g.count > 0) {
        found.gpus_per_node = asked.count;
    }
    let nodes = planned.gpus().div_ceil(found.gpus_per_node.max(1).into());
    found.nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    found
}

/// The smallest of the GPUs that the scheduler may give, joined as they are there. None: there is none.
fn on_running(client: &Client, spec: &JobSpec, planned: &Planned) -> Result<Option<Cluster>, Fail> {
    let rows = client.gpus(None)?;
    let Some(row) = smallest(&rows, spec) else { return Ok(None) };
    let mut found = match place::with(client, &row.model)? {
        Some(found) => sized(found, spec, planned),
        None => listed_cluster(&row.model, spec, planned)?,
    };
    let gpu = place::with_memory(&row.model, row.mem);
    if let Some(gpu) = gpu.filter(|gpu| gpu.memory_gb < found.gpu.memory_gb) {
        let Gpu { matmul_tflops, copy_gbps, .. } = found.gpu;
        found.gpu = Gpu { matmul_tflops, copy_gbps, ..gpu };
    }
    Ok(Some(found))
}

fn smallest<'a>(rows: &'a [GpuRow], spec: &JobSpec) -> Option<&'a GpuRow> {
    let models: Option<Vec<&str>> = wanted(spec).map(|m| m.split('|').collect());
    let least = spec.gpu_mem.map_or(0, |bytes| bytes.0);
    let may = |row: &&GpuRow| {
        models.as_ref().is_none_or(|m| m.contains(&row.model.as_str())) && row.mem.0 >= least
    };
    rows.iter().filter(may).min_by_key(|row| row.mem.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> JobSpec {
        let text = format!(
            "run = 'x'\n{text}\n[plan]\nmodel = 'llama-3.1-8b'\nseq = 4096\nglobal_batch = 8"
        );
        tutti_wire::jobfile::parse(Some("a.toml"), text.as_bytes()).unwrap().spec
    }

    #[test]
    fn gpus_that_a_job_asks_for() {
        for (text, gpus) in [
            ("nodes = 2\ngpus_per_node = 'h100:8'", 16),
            ("gpus_per_node = 4", 4),
            ("gpus = 24", 24),
            ("gpus_per_node = 8\nelastic = { min_nodes = 1, max_nodes = 3 }", 24),
            ("nodes = 2", 0),
        ] {
            assert_eq!(asked(&spec(text)), gpus, "{text}");
        }
    }

    /// Of a small model on 8 GPUs.
    fn fit(plan: &str) -> Result<Fit, Fail> {
        let text = format!(
            "run = 'x'\ngpus_per_node = 'h100:8'\n[plan]\nmodel = 'qwen2.5-0.5b'\nseq = 4096\n\
             global_batch = 8\n{plan}"
        );
        let spec = tutti_wire::jobfile::parse(Some("a.toml"), text.as_bytes()).unwrap().spec;
        let there = catalogue::find("8xh100").unwrap();
        Planned::of(spec.plan.as_deref().unwrap())?.fit(&spec, &there, RUNNING.to_owned())
    }

    #[test]
    fn idle_gpus_and_other_steps_are_odd() {
        let all = fit("dp = 8").unwrap();
        assert_eq!((all.warnings.len(), all.gpus, all.asked), (0, 8, 8));
        assert!(all.sentence().starts_with("fits: "), "{}", all.sentence());
        let half = fit("dp = 4").unwrap().warnings;
        assert_eq!(
            half,
            ["it asks for 8 GPUs and is planned for 4: 4 would have nothing to do".to_owned()]
        );
        let step = |times: f64| {
            fit(&format!("dp = 8\nstep_time_s = {:.9}", times * all.step_time_s)).unwrap()
        };
        for near in [0.9, 1.0, 1.2] {
            assert_eq!(step(near).warnings, Vec::<String>::new(), "{near}");
        }
        assert!(step(1.0).sentence().contains(", planned "));
        let far = step(0.5).warnings.concat();
        assert!(far.contains("step_time_s is ") && far.contains("(+100 %)"), "{far}");
        let few = fit("dp = 16\npp = 2").unwrap_err();
        assert_eq!(few.message, "it needs 32 GPUs and the job asks for 8");
    }

    #[test]
    fn words_are_the_planners() {
        let plan = |change: fn(&mut DeclaredPlan)| {
            let mut plan = *spec("gpus = 1").plan.unwrap();
            change(&mut plan);
            Planned::of(&plan).map(|p| p.workload.task).map_err(|e| e.message)
        };
        assert_eq!(plan(|_| ()), Ok(Task::Pretrain));
        assert_eq!(plan(|p| p.task = "lora".into()), Ok(Task::Lora { rank: input::LORA_RANK }));
        assert!(plan(|p| p.task = "serve".into()).unwrap_err().starts_with("plan.task: 'serve'"));
        assert!(plan(|p| p.precision = "int3".into()).unwrap_err().starts_with("plan.precision: "));
        assert!(plan(|p| p.model = "lama-3.1-8b".into()).unwrap_err().starts_with("plan.model: "));
        assert!(plan(|p| p.lora_rank = Some(8)).unwrap_err().contains("task = \"lora\""));
    }
}
