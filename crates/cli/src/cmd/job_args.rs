//! The flags that describe a job, shared by `submit` and `run`. They override the job file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tutti_model::{
    ArraySpec, Bytes, Dependency, Elastic, GpuRequest, JobSpec, Launcher, Preempt, PreemptMode,
    Priority, Span, Topology, name_problem, variable_name_problem,
};
use tutti_wire::jobfile::Inherit;

use crate::fail::Fail;

#[derive(clap::Args, Default)]
pub struct JobArgs {
    /// How many nodes
    #[arg(
        short = 'N', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        allow_negative_numbers = true
    )]
    pub nodes: Option<u32>,
    /// GPUs on each node: 8 or h100:8
    #[arg(short = 'G', long, value_name = "GPUS", allow_negative_numbers = true)]
    pub gpus_per_node: Option<GpuRequest>,
    /// GPUs in total, spread over nodes by the scheduler
    #[arg(
        long, value_name = "TOTAL", conflicts_with = "nodes",
        value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true
    )]
    pub gpus: Option<u32>,
    /// A part of one GPU, such as 0.25; -G h100 says of which model
    #[arg(
        long, value_name = "SHARE", value_parser = share, conflicts_with = "gpus",
        allow_negative_numbers = true
    )]
    pub gpu_share: Option<f64>,
    #[arg(long, value_name = "SIZE", help = "Least memory of each GPU: 80GiB")]
    pub gpu_mem: Option<Bytes>,
    #[arg(long, value_name = "N", help = "CPUs for each GPU", allow_negative_numbers = true)]
    pub cpus_per_gpu: Option<u32>,
    #[arg(long, value_name = "SIZE", help = "Memory for each GPU: 64GiB")]
    pub mem_per_gpu: Option<Bytes>,
    #[arg(long, value_name = "N", help = "CPUs on each node", allow_negative_numbers = true)]
    pub cpus_per_node: Option<u32>,
    #[arg(long, value_name = "SIZE", help = "Memory on each node")]
    pub mem_per_node: Option<Bytes>,
    #[arg(long, value_name = "N", help = "Processes on each node", allow_negative_numbers = true)]
    pub ranks_per_node: Option<u32>,
    /// Who starts the processes: none torch torchrun mpi jax tf deepspeed ray
    #[arg(long, value_name = "NAME", value_parser = word::<Launcher>)]
    pub launcher: Option<Launcher>,
    /// The widest domain that it may span: island node rack rail site any
    #[arg(long, value_name = "DOMAIN", value_parser = word::<Topology>)]
    pub topology: Option<Topology>,
    /// Only on nodes with this label, a|b for either value; may be repeated
    #[arg(long = "label", value_name = "K=V", value_parser = pair)]
    pub labels: Vec<(String, String)>,
    /// Never on nodes with this label; may be repeated
    #[arg(long = "avoid-label", value_name = "K=V", value_parser = pair)]
    pub avoid_labels: Vec<(String, String)>,
    /// Nobody else on the same nodes
    #[arg(long)]
    pub exclusive: bool,
    /// Goes on with any number of nodes between these: 2-8
    #[arg(long, value_name = "MIN-MAX", value_parser = elastic, conflicts_with = "gpus")]
    pub elastic: Option<Elastic>,
    /// Stop it after this long: 90s, 15m, 2h, 1d12h
    #[arg(long, short = 't', value_name = "TIME")]
    pub time: Option<Span>,
    /// Who pays
    #[arg(long, value_name = "TEAM", value_parser = name)]
    pub team: Option<String>,
    /// Class of the whole cluster, such as scavenger or urgent [default: standard]
    #[arg(long, value_name = "CLASS")]
    pub class: Option<String>,
    /// low, normal, high or a number
    #[arg(long, value_name = "PRIORITY", allow_hyphen_values = true)]
    pub priority: Option<Priority>,
    /// What it is called in lists
    #[arg(long, short = 'J', value_name = "NAME", value_parser = name)]
    pub name: Option<String>,
    /// Start after these jobs: 12,13 or ok:12,failed:13,any:14
    #[arg(long, value_name = "JOBS", value_delimiter = ',')]
    pub after: Vec<Dependency>,
    /// Where it runs [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// Run inside this image
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Set a variable; may be repeated
    #[arg(long, value_name = "K=V", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Pass every variable of this shell
    #[arg(long, conflicts_with = "env_none")]
    pub env_all: bool,
    /// Pass no variable of this shell
    #[arg(long)]
    pub env_none: bool,
    #[arg(
        long,
        value_name = "N",
        help = "How often to start again after its own failure",
        allow_negative_numbers = true
    )]
    pub retry_job_failure: Option<u32>,
    #[arg(
        long,
        value_name = "N",
        help = "How often to start again after a node's failure",
        allow_negative_numbers = true
    )]
    pub retry_node_failure: Option<u32>,
    #[arg(
        long,
        value_name = "N",
        help = "How often to start again after preemption",
        allow_negative_numbers = true
    )]
    pub retry_preemption: Option<u32>,
    /// Between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME")]
    pub grace: Option<Span>,
    /// What happens if it must make room: auto suspend checkpoint requeue never
    #[arg(long, value_name = "MODE", value_parser = word::<PreemptMode>)]
    pub preempt: Option<PreemptMode>,
}

/// The array is `submit`'s alone: `run` has one exit code to give.
pub fn set_array(spec: &mut JobSpec, array: Option<ArraySpec>) {
    if array.is_some() {
        spec.array = array;
    }
}

impl JobArgs {
    /// Flags over the file's keys, then directory and environment of the caller.
    pub fn apply(self, spec: &mut JobSpec, inherit: Inherit) -> Result<(), Fail> {
        fn over<T>(place: &mut Option<T>, flag: Option<T>) {
            if flag.is_some() {
                *place = flag;
            }
        }
        // What the flags say replaces the file's demand as a whole: 4 nodes of a flag and a total
        // of a file would contradict each other.
        if self.nodes.is_some() || self.gpus_per_node.is_some() {
            spec.gpus = None;
        }
        if self.gpus.is_some() || self.gpu_share.is_some() {
            (spec.nodes, spec.gpus_per_node) = (None, None);
        }
        if self.gpu_share.is_some() || self.elastic.is_some() {
            spec.gpus = None;
        }
        if self.gpus.is_some() {
            (spec.gpu_share, spec.elastic) = (None, None);
        }
        if self.elastic.is_some() {
            spec.nodes = None;
        }
        over(&mut spec.nodes, self.nodes);
        over(&mut spec.gpus, self.gpus);
        over(&mut spec.gpus_per_node, self.gpus_per_node);
        over(&mut spec.gpu_share, self.gpu_share);
        over(&mut spec.cpus_per_gpu, self.cpus_per_gpu);
        over(&mut spec.mem_per_gpu, self.mem_per_gpu);
        over(&mut spec.cpus_per_node, self.cpus_per_node);
        over(&mut spec.mem_per_node, self.mem_per_node);
        over(&mut spec.ranks_per_node, self.ranks_per_node);
        over(&mut spec.topology, self.topology);
        over(&mut spec.gpu_mem, self.gpu_mem);
        over(&mut spec.elastic, self.elastic);
        over(&mut spec.class, self.class);
        over(&mut spec.image, self.image);
        spec.labels.extend(self.labels);
        spec.avoid_labels.extend(self.avoid_labels);
        spec.exclusive |= self.exclusive;
        over(&mut spec.time, self.time);
        over(&mut spec.team, self.team);
        over(&mut spec.name, self.name);
        over(&mut spec.grace, self.grace);
        over(&mut spec.preempt, self.preempt.map(|mode| Preempt { mode }));
        spec.launcher = self.launcher.unwrap_or(spec.launcher);
        spec.priority = self.priority.unwrap_or(spec.priority);
        spec.retry.job_failure = self.retry_job_failure.unwrap_or(spec.retry.job_failure);
        spec.retry.node_failure = self.retry_node_failure.unwrap_or(spec.retry.node_failure);
        spec.retry.preemption = self.retry_preemption.unwrap_or(spec.retry.preemption);
        if !self.after.is_empty() {
            spec.after = self.after;
        }
        spec.workdir = Some(workdir(self.workdir, spec.workdir.take())?);
        let inherit = match (self.env_all, self.env_none) {
            (true, _) => Inherit::All,
            (_, true) => Inherit::Nothing,
            _ => inherit,
        };
        let own = std::mem::take(&mut spec.env);
        spec.env = inherited(&inherit, std::env::vars()).into();
        spec.env.extend(own.into_inner());
        spec.env.extend(self.env);
        Ok(())
    }
}

/// A relative directory is meant from here, where the job was written down.
fn workdir(flag: Option<PathBuf>, file: Option<String>) -> Result<String, Fail> {
    let here = || {
        std::env::current_dir().map_err(|e| {
            Fail::usage(format!("the current directory can't be read: {e}")).hint("give --workdir")
        })
    };
    let dir = match flag.or(file.map(PathBuf::from)) {
        Some(dir) if dir.is_absolute() => dir,
        Some(dir) => here()?.join(dir),
        None => here()?,
    };
    dir.into_os_string().into_string().map_err(|dir| {
        Fail::usage(format!("the directory {} has a name that is not UTF-8", dir.display()))
    })
}

/// What a program needs to be found, and to find its libraries.
const USUAL: [&str; 7] = [
    "PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "LANG",
];

/// Ours never travel: a token in a job's environment would end up in the journal.
fn inherited(
    inherit: &Inherit,
    caller: impl Iterator<Item = (String, String)>,
) -> BTreeMap<String, String> {
    caller
        .filter(|(name, _)| match inherit {
            Inherit::Usual => USUAL.contains(&name.as_str()),
            Inherit::All => true,
            Inherit::Nothing => false,
            Inherit::Only(names) => names.contains(name),
        })
        .filter(|(name, _)| !name.starts_with("TUTTI_"))
        // Whatever the caller's shell made of it, a job can't have it.
        .filter(|(name, _)| variable_name_problem(name).is_none())
        .collect()
}

pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

pub fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = pair(text)?;
    match variable_name_problem(&name) {
        None => Ok((name, value)),
        Some(why) => Err(why.to_owned()),
    }
}

fn name(text: &str) -> Result<String, String> {
    name_problem(text).map_or_else(|| Ok(text.to_owned()), |why| Err(format!("it {why}")))
}

/// `2-8`, or `4` for exactly so many.
fn elastic(text: &str) -> Result<Elastic, String> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    match (least.parse(), most.parse()) {
        (Ok(min_nodes), Ok(max_nodes)) if 0 < min_nodes && min_nodes <= max_nodes => {
            Ok(Elastic { min_nodes, max_nodes })
        }
        _ => Err("write the least and the most number of nodes, such as 2-8".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|s: &f64| (0.001..=1.0).contains(s))
        .ok_or_else(|| "write a number from 0.001 to 1".to_owned())
}

/// The words that job files use, read by the same derive.
pub fn word<T: for<'a> serde::Deserialize<'a>>(text: &str) -> Result<T, String> {
    use serde::de::IntoDeserializer;
    let word: serde::de::value::StrDeserializer<'_, serde::de::value::Error> =
        text.into_deserializer();
    T::deserialize(word).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> impl Iterator<Item = (String, String)> {
        [("PATH", "/bin"), ("SECRET", "x"), ("TUTTI_TOKEN", "t"), ("LANG", "C"), ("A B", "1")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into_iter()
    }

    #[test]
    fn what_a_job_inherits() {
        let names = |i: &Inherit| inherited(i, caller()).into_keys().collect::<Vec<_>>().join(" ");
        assert_eq!(names(&Inherit::Usual), "LANG PATH");
        assert_eq!(names(&Inherit::All), "LANG PATH SECRET");
        assert_eq!(names(&Inherit::Nothing), "");
        assert_eq!(names(&Inherit::Only(vec!["SECRET".into()])), "SECRET");
    }

    #[test]
    fn flags_win_over_the_file() {
        let mut spec = JobSpec::shell("true");
        spec.gpus = Some(16);
        spec.name = Some("file".into());
        spec.env.insert("A".into(), "file".into());
        spec.env.insert("B".into(), "file".into());
        spec.workdir = Some("/data".into());
        let args = JobArgs {
            nodes: Some(2),
            gpus_per_node: Some("h100:8".parse().unwrap()),
            env: vec![("A".into(), "flag".into())],
            retry_job_failure: Some(3),
            class: Some("urgent".into()),
            labels: vec![("nvme".into(), "true".into())],
            ..JobArgs::default()
        };
        spec.labels.insert("gen".into(), "5".into());
        args.apply(&mut spec, Inherit::Nothing).unwrap();
        assert_eq!((spec.nodes, spec.gpus), (Some(2), None));
        assert_eq!((spec.name.as_deref(), spec.retry.job_failure), (Some("file"), 3));
        assert_eq!((spec.env["A"].as_str(), spec.env["B"].as_str()), ("flag", "file"));
        assert_eq!(spec.workdir.as_deref(), Some("/data"));
        assert_eq!((spec.class.as_deref(), spec.labels.len()), (Some("urgent"), 2));
    }

    #[test]
    fn an_elastic_job_has_no_fixed_number_of_nodes() {
        assert_eq!(elastic("2-8"), Ok(Elastic { min_nodes: 2, max_nodes: 8 }));
        assert_eq!(elastic("4"), Ok(Elastic { min_nodes: 4, max_nodes: 4 }));
        for text in ["", "0-3", "8-2", "a-b", "2-"] {
            assert!(elastic(text).is_err(), "{text}");
        }
        let mut spec = JobSpec::shell("true");
        spec.nodes = Some(16);
        let args = JobArgs { elastic: elastic("2-8").ok(), ..JobArgs::default() };
        args.apply(&mut spec, Inherit::Nothing).unwrap();
        assert_eq!((spec.nodes, spec.elastic.unwrap().max_nodes), (None, 8));
    }

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        job: JobArgs,
    }

    /// What a flag may not be is told of the flag, not of a `-1` that nobody has heard of.
    #[test]
    fn numbers_are_judged_as_numbers() {
        use clap::Parser;
        let says = |line: &str| match Flags::try_parse_from(line.split(' ')) {
            Ok(flags) => format!("{:?}", flags.job.gpu_share),
            Err(e) => e.to_string(),
        };
        for (line, want) in [
            ("x -N -1", "invalid value '-1' for '--nodes <N>'"),
            ("x -G -1", "invalid value '-1' for '--gpus-per-node <GPUS>'"),
            ("x --gpus -8", "invalid value '-8' for '--gpus <TOTAL>'"),
            ("x --cpus-per-gpu -8", "invalid value '-8' for '--cpus-per-gpu <N>'"),
            ("x --retry-job-failure -8", "invalid value '-8' for '--retry-job-failure <N>'"),
            ("x --gpu-share -0.5", "write a number from 0.001 to 1"),
            ("x --gpu-share 0.0001", "write a number from 0.001 to 1"),
            ("x --gpu-share 0.001", "Some(0.001)"),
            ("x --env A\u{a0}B=1", "the name of a variable can't contain white space"),
            ("x --env =1", "write NAME=VALUE"),
            ("x --name=", "it is empty: write a name, or leave it out"),
            ("x --team=", "it is empty: write a name, or leave it out"),
        ] {
            let said = says(line);
            assert!(said.contains(want), "{line}: {said}");
        }
    }

    #[test]
    fn words_of_the_job_file() {
        assert_eq!(word::<Launcher>("torch"), Ok(Launcher::Torch));
        assert!(word::<Launcher>("slurm").unwrap_err().contains("expected one of"));
    }
}
