//! Verbs and flags. Each verb's own flags stand in its file under `cmd/`.

use clap::{Parser, Subcommand};
use tutti_model::Span;

use crate::cmd;

/// One binary that turns a room of GPU servers into one computer.
#[derive(Parser)]
#[command(name = "tutti", version, disable_help_subcommand = false, max_term_width = 100)]
#[command(
    after_help = "Start here:\n  tutti up --detach         a cluster on this machine, simulated if it has no GPUs\n  \
    tutti run -G 2 -- nvidia-smi\n  tutti submit train.toml && tutti ps"
)]
pub struct Cli {
    /// The cluster: a data dir or an address [env: TUTTI_CLUSTER] [default: the default data dir]
    // Not clap's `env`: messages about usage would show the flag as if it had to be given.
    // Nor may it be empty: `--cluster "$UNSET"` would be the default one.
    #[arg(
        long, global = true, value_name = "DIR|ADDR",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub cluster: Option<String>,
    /// How long an answer of the controller may take [env: TUTTI_TIMEOUT] [default: 30s]
    #[arg(long, global = true, value_name = "TIME")]
    pub timeout: Option<Span>,
    #[command(subcommand)]
    pub verb: Verb,
}

impl Cli {
    /// The flag, else what the variable says.
    pub fn cluster(&self, variable: Option<String>) -> Option<String> {
        self.cluster.clone().or(variable).filter(|cluster| !cluster.is_empty())
    }
}

#[derive(Subcommand)]
pub enum Verb {
    /// Start a cluster on this machine
    Up(cmd::up::UpArgs),
    /// Stop what `tutti up` started
    Down(cmd::down::DownArgs),
    /// Run the controller in the foreground
    Controller(cmd::controller::ControllerArgs),
    /// Run this node's agent in the foreground
    Agent(cmd::agent::AgentArgs),
    /// Run a router in the foreground: takes requests to endpoints and passes them to replicas
    Router(cmd::router::RouterArgs),
    /// Submit a job and print its id
    Submit(cmd::submit::SubmitArgs),
    /// Submit a command, show its output, exit with its code
    Run(cmd::run::RunArgs),
    /// Serve a model or any HTTP server to many users, and wait until it answers
    Serve(cmd::serve::ServeArgs),
    /// What is served: list, show, scale, update, roll back, stop
    Endpoints(cmd::endpoints::EndpointsArgs),
    /// List jobs
    Ps(cmd::ps::PsArgs),
    /// All about one job, or one node
    Show(cmd::show::ShowArgs),
    /// Say how far this job is, from inside it
    Progress(cmd::progress::ProgressArgs),
    /// Why a job is not running and what would start it, or why an endpoint does not answer
    Why(cmd::why::WhyArgs),
    /// Output of a job
    Logs(cmd::logs::LogsArgs),
    /// Follow a running job's output and feed its input
    Attach(cmd::attach::AttachArgs),
    /// Run a program inside a running job
    Exec(cmd::exec::ExecArgs),
    /// Stop jobs: SIGTERM, then SIGKILL after the grace; or send them a signal
    Cancel(cmd::cancel::CancelArgs),
    /// Change a job that was submitted: priority, time, team, name, what it waits for
    Update(cmd::update::UpdateArgs),
    /// Wait until jobs have ended, and exit with their code
    Wait(cmd::wait::WaitArgs),
    /// Keep pending jobs from starting
    Hold(cmd::change::ChangeArgs),
    /// Let held jobs start
    Release(cmd::change::ChangeArgs),
    /// Take running jobs off their GPUs, until they are resumed
    Suspend(cmd::change::ChangeArgs),
    /// List nodes
    Nodes(cmd::nodes::NodesArgs),
    /// Watch the cluster: GPUs, jobs, nodes, one job's ranks, logs
    Top(cmd::top::TopArgs),
    /// Start nothing new on a node; what runs goes on
    Drain(cmd::drain::DrainArgs),
    /// Let suspended jobs go on, or use drained nodes again
    Resume(cmd::drain::ResumeArgs),
    /// What is wrong now: idle GPUs, hangs, stragglers, full disks and the like
    Alerts(cmd::alerts::AlertsArgs),
    /// What each team is guaranteed, has, borrows and lends
    Quota(cmd::quota::QuotaArgs),
    /// Where GPU-hours and money went, and who wasted most
    Report(cmd::report::ReportArgs),
    /// Which nodes are reserved for whom, and coming maintenance
    Reservations(cmd::reservations::ReservationsArgs),
    /// How the cluster is shared: teams, classes, reservations, topology
    Policy(cmd::policy::PolicyArgs),
    /// Tokens for people and for joining nodes
    Token(cmd::token::TokenArgs),
    /// Check the cluster, or a stopped cluster's journal
    Doctor(cmd::doctor::DoctorArgs),
    /// Say of a data dir that was put back from a backup that it is meant, and what is in it
    Restore(cmd::restore::RestoreArgs),
    /// Checkpoints: list, verify, keep, remove, copy, register
    Ckpt(cmd::ckpt::CkptArgs),
    /// From a model and a cluster to a layout, a time and a price
    Plan(Box<cmd::plan::PlanArgs>),
    /// Run a trace, or this cluster's past, through the scheduler
    Sim(cmd::sim::SimArgs),
    /// Train a small model: one rank of the reference trainer
    Train(Box<cmd::train::TrainArgs>),
    /// Serve what was trained, over the OpenAI API
    Infer(Box<cmd::infer::InferArgs>),
    /// Measure the cluster: speed between ranks, speed of GPUs, and what is slower than its like
    Bench(cmd::bench::BenchArgs),
    /// One rank of a measurement
    #[command(hide = true)]
    BenchRank(cmd::bench::rank::RankArgs),
    /// One node of a measurement of GPUs
    #[command(hide = true)]
    BenchGpuRank,
    /// See a cluster at work: 5 nodes of simulated GPUs, in less than a minute
    Demo(cmd::demo::DemoArgs),
    /// A rank of a gang whose framework starts processes itself
    #[command(hide = true, name = tutti_agent::helper::LAUNCH)]
    Launch(cmd::helper::LaunchArgs),
    /// Speaks with the CUDA driver for a part's supervisor
    #[command(hide = true, name = tutti_agent::suspend::serve::VERB)]
    Cuda(cmd::cuda::CudaArgs),
    /// What mpirun calls instead of ssh
    #[command(hide = true, name = tutti_agent::helper::RSH)]
    Rsh(cmd::helper::RshArgs),
    /// Print a completion script for a shell
    Completions(cmd::generate::CompletionsArgs),
    /// Print the manual page, or write all of them to a directory
    Man(cmd::generate::ManArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_cluster_is_the_flags_or_the_variables_and_usage_does_not_demand_it() {
        let of = |line: &str, variable: &str| {
            accepts(line).unwrap().cluster(Some(variable.to_owned())).unwrap_or_default()
        };
        assert_eq!(of("tutti ps", "/d"), "/d");
        assert_eq!(of("tutti ps --cluster /e", "/d"), "/e");
        assert_eq!(of("tutti ps", ""), "");
        let from_env = |c: &clap::Command| {
            c.get_arguments().any(|a| a.get_env().is_some_and(|e| e == "TUTTI_CLUSTER"))
        };
        let command = Cli::command();
        assert!(!from_env(&command) && !command.get_subcommands().any(from_env));
    }

    fn accepts(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    /// Scripts rely on these forms.
    #[test]
    fn the_fixed_forms_are_accepted() {
        for line in [
            "tutti up --nodes 4 --gpus-per-node 8 --gpu-model h100 --simulate --data-dir /d --listen 127.0.0.1:0 --detach",
            "tutti down --data-dir /d",
            "tutti submit job.toml -N 2 -G 8 --time 2h --json",
            "tutti submit -N 2 -G h100:8 job.toml",
            "tutti submit --wrap true --gpus 16 --array 0-999 --after 12,13 --team T --priority high",
            "tutti submit --wrap true --gpu-share 0.25",
            "tutti submit --wrap true --gpu-share 0.25 -G h100",
            "tutti submit --wrap true --class urgent --gpu-mem 80GiB --label a=b --label c=d --avoid-label e=f --exclusive --topology rail --elastic 2-8",
            "tutti run --exclusive --topology island -- true",
            "tutti alerts --all --json",
            "tutti alerts --rules",
            "tutti alerts --watch",
            "tutti quota --json",
            "tutti bench collectives -N 4 -G h100:8 --sizes 1KiB,1MiB --strict --json",
            "tutti quota --watch",
            "tutti report",
            "tutti report 12 --json",
            "tutti report --team T --user U --since 7d --until 2026-11-16 --by day --csv",
            "tutti report --by model --html",
            "tutti policy show --toml",
            "tutti policy check p.toml",
            "tutti policy apply --topology t.toml",
            "tutti policy apply t.toml --topology",
            "tutti policy apply p.toml --dry-run",
            "tutti policy apply p.toml --dry-run --json",
            "tutti reservations --all --json",
            "tutti reservations --watch",
            "tutti top",
            "tutti top 12_3 --every 2s",
            "tutti top --view jobs --filter user:ada --once --size 120x40",
            "tutti top --view nodes --json",
            "tutti nodes --labels",
            "tutti nodes --topology n1 n2 --json",
            "tutti up --nodes 8 --racks 2 --policy p.toml",
            "tutti submit train.sh one two",
            "tutti submit train.sh -- --lr 3",
            "tutti submit -G 1 -- python train.py --lr 3",
            "tutti run -N 4 -G 8 -- hostname -f",
            "tutti run hostname -f",
            "tutti ps --json",
            "tutti ps --cluster /d --all --state pending,running",
            "tutti ps 12 12_3",
            "tutti progress --step 10 --loss 2.5 --tokens 4096 --saved 10 --path /ckpt/10",
            "tutti logs 12 -f --tail 5 --rank 0-3,7",
            "tutti serve chat.toml",
            "tutti serve chat.toml --update --canary 10 --detach --name chat -e A=B --json",
            "tutti serve - --no-wait",
            "tutti endpoints",
            "tutti endpoints --watch",
            "tutti endpoints --stopped --json",
            "tutti endpoints list --stopped",
            "tutti endpoints list --json",
            "tutti endpoints show chat --json",
            "tutti endpoints scale chat 3",
            "tutti endpoints scale chat 0..8",
            "tutti endpoints scale chat --auto",
            "tutti endpoints update chat chat.toml --canary 10 -d",
            "tutti endpoints rollback chat --to 2",
            "tutti endpoints stop chat",
            "tutti why 12",
            "tutti why chat",
            "tutti router --listen 127.0.0.1:8080 --threads 2 --name r1 --table-file /t",
            "tutti router --listen 0.0.0.0:443 --tls-cert c.pem --tls-key k.pem --address https://gpu",
            "tutti router --public-name a --public-name b --allow-origin http://localhost:3000",
            "tutti up --router-listen 127.0.0.1:0",
            "tutti up --no-router",
            "tutti token create --router",
            "tutti token create --serve app --requests-per-minute 60 --tokens-per-minute 9000 --concurrent 4 --endpoint chat --endpoint embed --expires 30d",
            "tutti exec 12 --rank 1 -- nvidia-smi -L",
            "tutti cancel 12 13",
            "tutti cancel --user ada --state pending --name train --team T --yes",
            "tutti cancel 12 --signal USR1",
            "tutti cancel 12 --now",
            "tutti update 12 --time 2h --priority low --team T --name x --after 3,4 --hold",
            "tutti update 12 --time none --after none --release",
            "tutti update 12 -N 2 -G h100:8",
            "tutti wait 12 13_4",
            "tutti wait --any --timeout 2h 12 13",
            "tutti --timeout 5s ps",
            "tutti show n1",
            "tutti suspend 12 13_4",
            "tutti resume 12 13_4 n1",
            "tutti drain n1 --reason broken",
            "tutti nodes inject n1 --gpu 0 --xid 79",
            "tutti nodes inject n1 --check fan --action drain_node",
            "tutti token create --role user --user ada --expires 30d",
            "tutti token create --join --node n7 --uses 1",
            "tutti agent --controller 127.0.0.1:7171 --token-file - --name n1 --simulate --label rack=1",
            "tutti controller --data-dir /d --listen 127.0.0.1:0 --name gpu.example.org --node-timeout 8s --policy p.toml",
            "tutti sim --format openb --nodes F --pods F --order F --json",
            "tutti sim --format muri --trace F --nodes 8 --gpus-per-node 8 --policy default-known --json",
            "tutti sim --format csv --trace F --cluster 4xh100:8 --add 4xh100:8 --remove-rack r3 --team-quota a=64",
            "tutti plan llama-3.1-70b --on 16xdgx-h100 --tokens 2T --goal money --explain",
            "tutti plan ./config.json --task lora --lora-rank 8 --seq 8192 --batch 64 --precision fp8 --json",
            "tutti plan --layers 32 --hidden 4096 --heads 32 --on c.toml --price 2.5 --fewer",
            "tutti plan m --tp 4 --pp 2 --vp 2 --cp 1 --ep 1 --dp 8 --micro-batch 2 --zero 1 --recompute full --sequence-parallel true",
            "tutti plan m --on 4xh100 --write job --out job.toml",
            "tutti plan m --tokens 1T --deadline 7d",
            "tutti plan m --tokens 1T --budget 50000",
            "tutti plan m --task inference --prompt 1024 --output 256 --ttft 500ms --tpot 50ms --rps 20",
            "tutti plan --predict runs.csv --out out.csv",
            "tutti plan --check job.toml",
            "tutti plan --list models",
            "tutti train --data F --steps 9 --dp 2 --tp 2 --pp 2 --stages 3,5 --zero --checkpoint /c --every 5 --json",
            "tutti infer --checkpoint /c --step 9 --model a --model b --listen 127.0.0.1:0 --device cuda:1 --max-batch 8",
            "tutti ckpt ls 12 --json",
            "tutti ckpt show /ckpt/run latest --tensors",
            "tutti ckpt verify s3://bucket/run 100 200 --mend",
            "tutti ckpt rm /ckpt/run --keep-last 3 --keep-every 1000",
            "tutti ckpt restore /ckpt/run 100 --to /tmp/x --single",
            "tutti ckpt register /ckpt/run/checkpoint-500 --step 500",
            "tutti ckpt advise 12",
            "tutti demo --keep --data-dir /d --json",
            "tutti completions bash",
            "tutti man",
        ] {
            if let Err(e) = accepts(line) {
                panic!("{line}: {e}");
            }
        }
    }

    #[test]
    fn wrong_forms_are_usage_errors() {
        for line in [
            "tutti",
            "tutti down --cluster=",
            "tutti submit job.toml --wrap true",
            "tutti submit --wrap true --gpus 4 -N 2",
            "tutti run",
            "tutti progress",
            "tutti progress --path /ckpt/10",
            "tutti progress --step -1",
            "tutti submit --wrap true -G h100:x",
            "tutti submit --wrap true --elastic 8-2",
            "tutti submit --wrap true --gpus 4 --gpu-share 0.5",
            "tutti policy show --json --toml",
            "tutti policy apply p.toml --json",
            "tutti reservations --json --watch",
            "tutti submit --wrap true --env NOEQUALS",
            "tutti cancel twelve",
            "tutti cancel",
            "tutti cancel 12 --now --signal USR1",
            "tutti cancel --user ada --state dead",
            "tutti update 12",
            "tutti update 12 --hold --release",
            "tutti wait",
            "tutti ps --timeout soon",
            "tutti top --view rooms",
            "tutti top --once --size 120",
            "tutti top --size 100x30",
            "tutti top 12 --view jobs",
            "tutti token create --join --role user",
            "tutti token create --router --serve app",
            "tutti token create --serve app --role user",
            "tutti token create --concurrent 4",
            "tutti serve",
            "tutti serve chat.toml --canary 10",
            "tutti serve chat.toml --update --canary 101",
            "tutti endpoints scale chat",
            "tutti endpoints scale chat 8..1",
            "tutti endpoints scale chat 3 --auto",
            "tutti endpoints --json --watch",
            "tutti router --tls-cert c.pem",
            "tutti router --public-name a:80",
            "tutti router --allow-origin *",
            "tutti up --no-router --router-listen 127.0.0.1:0",
            "tutti plan m --batch 0",
            "tutti plan m --precision int3",
            "tutti plan m --tokens many",
            "tutti plan m --ttft 500",
            "tutti plan m --zero 4",
            "tutti nodes inject n1",
            "tutti nodes inject n1 --xid 79",
            "tutti nodes inject n1 --gpu 0 --xid 79 --action note",
            "tutti nodes inject n1 --gpu 0 --xid 79 --check fan",
        ] {
            let e = accepts(line).err().unwrap_or_else(|| panic!("{line}"));
            assert_eq!(e.exit_code(), 2, "{line}");
        }
    }
}
