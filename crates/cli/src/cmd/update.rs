//! `tutti update`: a job that was submitted, changed.

use std::process::ExitCode;

use tutti_model::{Dependency, GpuRequest, JobUpdate, Priority, Span, TaskId};

use super::change::whole;
use crate::fail::Fail;
use crate::show::harmless;
use crate::{session, terminal};

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("what").multiple(true).required(true).args(
    ["priority", "time", "name", "team", "class", "after", "hold", "release", "nodes", "gpus", "gpus_per_node"]))]
#[command(
    after_help = "While it waits for its first start, everything here can change. Once it has started: its name, \
    priority, hold and time;\na limit is then made longer by admins only."
)]
pub struct UpdateArgs {
    /// Jobs, as a whole: 12
    #[arg(required = true, value_name = "ID")]
    ids: Vec<TaskId>,
    /// low, normal, high or a number; admins only raise it
    #[arg(long, value_name = "PRIORITY", allow_hyphen_values = true)]
    priority: Option<Priority>,
    /// Stop it after this long, from its start: 90s, 15m, 2h, 1d12h; none takes the limit away
    #[arg(long, short = 't', value_name = "TIME", value_parser = limit)]
    time: Option<Limit>,
    /// What it is called in lists
    #[arg(long, short = 'J', value_name = "NAME")]
    name: Option<String>,
    /// Who pays
    #[arg(long, value_name = "TEAM")]
    team: Option<String>,
    /// Class of the whole cluster, such as scavenger or urgent
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
    /// Start after these jobs, and no others: 12,13 or ok:12,failed:13,any:14; none waits for nobody
    #[arg(long, value_name = "JOBS", value_parser = dependencies)]
    after: Option<Dependencies>,
    /// Keep it from starting
    #[arg(long, conflicts_with = "release")]
    hold: bool,
    /// Let it start
    #[arg(long)]
    release: bool,
    /// How many nodes
    #[arg(short = 'N', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// GPUs in total, spread over nodes by the scheduler
    #[arg(
        long, value_name = "TOTAL", conflicts_with_all = ["nodes", "gpus_per_node"],
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    gpus: Option<u32>,
    /// GPUs on each node: 8 or h100:8
    #[arg(short = 'G', long, value_name = "GPUS")]
    gpus_per_node: Option<GpuRequest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    None,
    After(Span),
}

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit::None),
        text => text.parse().map(Limit::After).map_err(|e| format!("{e}, and `none` is no limit")),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Dependencies(Vec<Dependency>);

fn dependencies(text: &str) -> Result<Dependencies, String> {
    if text == "none" {
        return Ok(Dependencies(Vec::new()));
    }
    let each = text.split(',').map(|word| word.parse::<Dependency>().map_err(|e| e.to_string()));
    each.collect::<Result<_, _>>().map(Dependencies)
}

impl UpdateArgs {
    fn update(self) -> JobUpdate {
        JobUpdate {
            name: self.name,
            priority: self.priority,
            time: match self.time {
                Some(Limit::After(span)) => Some(span),
                _ => None,
            },
            no_time: self.time == Some(Limit::None),
            hold: match (self.hold, self.release) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
            team: self.team,
            class: self.class,
            after: self.after.map(|after| after.0),
            nodes: self.nodes,
            gpus: self.gpus,
            gpus_per_node: self.gpus_per_node,
        }
    }
}

/// Every job is tried; the first failure decides the exit code.
pub fn run(cluster: Option<&str>, mut args: UpdateArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let ids = std::mem::take(&mut args.ids);
    let update = args.update();
    let mut worst = None;
    for id in ids {
        match whole(id).and_then(|job| Ok(client.update(job, &update)?)) {
            Ok(_) => terminal::complain(&format!("updated {id}: {}", harmless(&update.words()))),
            Err(fail) => {
                let code = fail.report();
                worst = worst.or(Some(code));
            }
        }
    }
    Ok(worst.unwrap_or(ExitCode::SUCCESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_a_word_of_its_own() {
        assert_eq!(limit("none"), Ok(Limit::None));
        assert_eq!(limit("2h"), Ok(Limit::After(Span::secs(7200))));
        assert!(limit("never").unwrap_err().contains("`none` is no limit"));
        assert_eq!(dependencies("none"), Ok(Dependencies(Vec::new())));
        assert_eq!(dependencies("12,failed:13").unwrap().0.len(), 2);
        assert!(dependencies("12,").is_err());
    }
}
