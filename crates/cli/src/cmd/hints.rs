//! Words that people of other systems type, and what they are here.

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::Cli;
use crate::fail::Fail;

/// Verbs of Slurm, PBS, LSF, Nomad, kubectl and docker, and what people just try.
const VERBS: &[(&[&str], &str)] = &[
    (&["squeue", "qstat", "bjobs", "queue", "q", "jobs", "job", "list", "ls", "pods"], "tutti ps"),
    (&["get"], "tutti ps lists jobs, tutti nodes nodes, tutti endpoints what is served"),
    (
        &["status", "info"],
        "tutti ps lists jobs, tutti show ID tells all about one, tutti nodes lists nodes",
    ),
    (
        &["describe", "inspect", "detail"],
        "tutti show ID or NODE; tutti why ID says what a job waits for",
    ),
    (&["sinfo", "node", "pbsnodes", "bhosts"], "tutti nodes"),
    (&["sbatch", "qsub", "bsub", "create", "add"], "tutti submit FILE, or tutti submit -- CMD"),
    (
        &["apply"],
        "tutti submit FILE for a job, tutti serve FILE for an endpoint, tutti policy apply FILE",
    ),
    (&["srun", "mpirun", "start-job"], "tutti run -N 2 -G 8 -- CMD"),
    (
        &["salloc", "shell", "bash"],
        "tutti run -i -- bash, or tutti exec ID -- CMD inside a job that runs",
    ),
    (
        &["scancel", "qdel", "bkill", "kill", "delete", "del", "rm", "stop", "terminate"],
        "tutti cancel ID; tutti cancel --signal USR1 ID only sends a signal, --now kills at once",
    ),
    (
        &["scontrol"],
        "tutti show ID or NODE, tutti update ID, tutti hold, tutti release, tutti drain NODE, tutti resume NODE",
    ),
    (
        &["edit", "patch", "set", "modify", "change", "qalter", "bmod", "priority", "top-priority"],
        "tutti update ID --priority P --time T --team T",
    ),
    (
        &["sacct", "history", "bhist", "qhist"],
        "tutti ps --all, or tutti ps --since 30d; tutti report for GPU-hours",
    ),
    (&["sreport", "cost", "usage", "accounting"], "tutti report"),
    (
        &["sshare", "sacctmgr", "qos", "quotas", "teams", "team"],
        "tutti quota shows what teams have, tutti policy says what they get",
    ),
    (&["sprio", "eval", "explain"], "tutti why ID"),
    (
        &["sstat", "stat", "stats", "monitor", "nvtop", "dashboard"],
        "tutti top, or tutti nodes --gpus",
    ),
    (&["sattach"], "tutti attach ID"),
    (&["log", "tail", "output"], "tutti logs ID, and -f to follow"),
    (&["alloc", "ssh", "enter"], "tutti exec ID -- CMD"),
    (&["cordon"], "tutti drain NODE"),
    (&["uncordon", "undrain", "enable"], "tutti resume NODE"),
    (
        &["join"],
        "tutti agent --controller ADDR --join-file FILE, with a token of tutti token create --join",
    ),
    (
        &["rollout", "scale", "deploy", "endpoint", "service", "services", "svc", "deployments"],
        "tutti serve FILE, and tutti endpoints scale, update, rollback",
    ),
    (
        &["start", "init", "server"],
        "tutti up starts a cluster on this machine, tutti controller only the controller",
    ),
    (&["shutdown", "halt"], "tutti down"),
    (
        &["login", "auth", "config", "context"],
        "set TUTTI_CLUSTER and TUTTI_TOKEN; an admin makes tokens with tutti token create",
    ),
    (&["user", "users"], "tutti token create --role user --user NAME"),
    (&["reservation", "maintenance"], "tutti reservations"),
    (&["version"], "tutti --version"),
    (&["health", "check", "diagnose"], "tutti doctor, or tutti doctor NODE"),
];

/// Flags of the same.
const FLAGS: &[(&[&str], &str)] = &[
    (
        &["-n", "--ntasks"],
        "-N says how many nodes, --ranks-per-node how many processes on each; a namespace is --team",
    ),
    (&["--namespace"], "--team"),
    (
        &["--partition", "-p", "--queue", "-q"],
        "there are no partitions: -G h100:8 says which GPUs, --label K=V which nodes, --class and --team whose turn it is",
    ),
    (
        &["--gres", "--gpus-per-task", "--gpu", "--num-gpus"],
        "-G 8 or -G h100:8 for each node, --gpus 16 in total",
    ),
    (&["--qos"], "--class"),
    (&["--account", "-A", "--project"], "--team"),
    (&["--cpus-per-task", "-c", "--cpus"], "--cpus-per-node, or --cpus-per-gpu"),
    (&["--mem", "--memory"], "--mem-per-node, or --mem-per-gpu"),
    (&["--mem-per-cpu"], "--mem-per-node, or --mem-per-gpu"),
    (
        &["--ntasks-per-node", "--ntasks-per-gpu", "--nproc-per-node", "--nproc_per_node"],
        "--ranks-per-node, or --launcher torch for one process for each GPU",
    ),
    (&["--dependency", "-d", "--depend"], "--after 12,13 or --after ok:12,failed:13"),
    (&["--job-name"], "--name, or -J"),
    (&["--walltime", "--time-limit", "--max-time"], "--time 2h"),
    (
        &["--output", "--error", "-o", "-e"],
        "output is kept: tutti logs ID shows it; lists have --json",
    ),
    (
        &[
            "--constraint",
            "-C",
            "--nodelist",
            "-w",
            "--nodes-with",
            "--selector",
            "--node-selector",
        ],
        "--label K=V",
    ),
    (&["--exclude", "-x"], "--avoid-label K=V, or tutti drain NODE"),
    (&["--chdir", "-D", "--cwd"], "--workdir"),
    (&["--export"], "--env K=V, --env-all, --env-none"),
    (
        &["--requeue", "--no-requeue", "--restart"],
        "--retry-job-failure, --retry-node-failure, --retry-preemption",
    ),
    (&["--nice"], "--priority"),
    (&["--begin", "--start-time"], "--hold and later tutti release, or --after JOB"),
    (&["--container-image", "--container"], "--image"),
    (
        &["--reservation"],
        "reservations are in the policy, for users or teams: nothing has to be asked for",
    ),
    (
        &["--mail-type", "--mail-user", "--notify"],
        "the policy's alerts notify people: tutti policy show",
    ),
    (&["--oversubscribe", "--share"], "--gpu-share 0.25"),
    (&["--format", "--long", "-l"], "--json, or tutti show ID for all about one job"),
    (&["--all-namespaces", "--states", "-t"], "--all, or --state pending,running"),
    (&["--me", "--mine"], "--user NAME"),
    (&["--kill", "--force"], "tutti cancel --now"),
];

/// Flags that mean something else with one verb than with the others.
const FLAGS_OF: &[(&[&str], &[&str], &str)] = &[
    (&["ps", "cancel", "report"], &["-u"], "--user USER"),
    (
        &["ps"],
        &["-n"],
        "--name TEXT finds by a part of the name, --limit N shows so many rows, --team TEAM is what \
         elsewhere is a namespace",
    ),
    (&["cancel"], &["-n"], "--name TEXT cancels those with this in their name"),
    (
        &["ps", "nodes", "endpoints", "alerts", "quota", "show", "reservations"],
        &["-o", "--output"],
        "there are no formats to choose from: --json prints everything for programs",
    ),
    (
        &["ps", "nodes"],
        &["--sort", "-S", "--sort-by"],
        "the list has one order: tutti top sorts (its key is s), and --json prints everything for \
         programs that do",
    ),
    (
        &["logs"],
        &["--since", "--until", "--since-time"],
        "there is no such flag: --tail N shows the last lines of each rank, --timestamps puts the time \
         before each line",
    ),
];

/// What the word is here, if somebody brought it along.
fn meaning<'t>(table: &[(&[&str], &'t str)], word: &str) -> Option<&'t str> {
    table.iter().find(|(words, _)| words.contains(&word)).map(|(_, meaning)| *meaning)
}

fn meaning_for(verb: Option<&str>, flag: &str) -> Option<&'static str> {
    let here = |verbs: &[&str]| verb.is_some_and(|verb| verbs.contains(&verb));
    let found = FLAGS_OF.iter().find(|(verbs, flags, _)| here(verbs) && flags.contains(&flag));
    found.map(|(.., meaning)| *meaning)
}

/// The verb of a command line. The value of `--cluster` may have its name; that leads to a hint for
/// another verb at worst.
fn verb(args: &[String]) -> Option<&str> {
    let command = Cli::command();
    let mut words = args.iter().skip(1).map(String::as_str);
    words.find(|word| command.find_subcommand(word).is_some())
}

/// The mistake in other words, if there is a hint for it.
fn hint(error: &clap::Error, args: &[String]) -> Option<Fail> {
    let told = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = told(ContextKind::InvalidSubcommand)?;
            let meaning = meaning(VERBS, &word).filter(|_| is_verb(args, &word))?;
            Some(Fail::usage(format!("there is no verb '{word}'")).hint(meaning))
        }
        ErrorKind::UnknownArgument => {
            let flag = told(ContextKind::InvalidArg)?;
            let flag = flag.split_once('=').map_or(flag.as_str(), |(flag, _)| flag);
            let meaning = meaning_for(verb(args), flag).or_else(|| meaning(FLAGS, flag))?;
            Some(Fail::usage(format!("there is no flag {flag} here")).hint(meaning))
        }
        _ => None,
    }
}

/// Not below another verb, where it may be missing for another reason.
fn is_verb(args: &[String], word: &str) -> bool {
    let command = Cli::command();
    let before = args.iter().skip(1).take_while(|arg| *arg != word);
    before.into_iter().all(|arg| command.find_subcommand(arg).is_none())
}

/// Says what is wrong with the command line, and leaves.
pub fn exit(error: &clap::Error) -> ! {
    let args: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    match hint(error, &args) {
        Some(fail) => {
            fail.report();
            std::process::exit(crate::fail::USAGE.into())
        }
        None => error.exit(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn said(line: &str) -> Option<Fail> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let error = Cli::try_parse_from(&args).err()?;
        hint(&error, &args)
    }

    #[test]
    fn words_of_other_systems_lead_to_ours() {
        for (line, want) in [
            ("tutti squeue", "tutti ps"),
            ("tutti sinfo -a", "tutti nodes"),
            ("tutti sbatch train.sh", "tutti submit"),
            ("tutti srun -n 4 hostname", "tutti run"),
            ("tutti scancel 12", "tutti cancel"),
            ("tutti status", "tutti ps"),
            ("tutti jobs", "tutti ps"),
            ("tutti get pods", "tutti ps"),
            ("tutti describe n1", "tutti show"),
            ("tutti delete 12", "tutti cancel"),
            ("tutti kill 12", "tutti cancel"),
            ("tutti submit -n 4 train.sh", "--ranks-per-node"),
            ("tutti submit --partition gpu train.sh", "there are no partitions"),
            ("tutti submit --partition=gpu train.sh", "there are no partitions"),
            ("tutti run --gres gpu:8 -- true", "-G 8"),
            ("tutti ps -n default", "--team"),
            ("tutti ps -n train", "--name TEXT"),
            ("tutti ps -u ada", "--user USER"),
            ("tutti cancel -u ada", "--user USER"),
            ("tutti cancel -n train", "--name TEXT"),
            ("tutti ps -o json", "--json"),
            ("tutti ps --output=json", "--json"),
            ("tutti nodes -o json", "--json"),
            ("tutti submit -o out.txt train.sh", "tutti logs ID"),
            ("tutti ps --sort=-priority", "tutti top"),
            ("tutti logs 12 --since 10m", "--tail N"),
            ("tutti --cluster /d squeue", "tutti ps"),
        ] {
            let fail = said(line).unwrap_or_else(|| panic!("{line} has no hint"));
            assert_eq!(fail.exit, 2, "{line}");
            assert!(fail.hint.as_ref().is_some_and(|h| h.contains(want)), "{line}: {fail}");
        }
        for line in ["tutti ps", "tutti frobnicate", "tutti token get", "tutti ps --frobnicate"] {
            assert_eq!(said(line), None, "{line}");
        }
    }

    /// No word of the table is one of ours, and none is there twice.
    #[test]
    fn the_table_has_no_word_of_ours() {
        let command = Cli::command();
        let words: Vec<&str> = VERBS.iter().flat_map(|(words, _)| words.iter().copied()).collect();
        for word in &words {
            assert!(command.find_subcommand(word).is_none(), "{word} is a verb");
            assert_eq!(words.iter().filter(|w| *w == word).count(), 1, "{word} is there twice");
        }
        let flags: Vec<&str> = FLAGS.iter().flat_map(|(flags, _)| flags.iter().copied()).collect();
        for flag in &flags {
            assert_eq!(flags.iter().filter(|f| *f == flag).count(), 1, "{flag} is there twice");
        }
        // What they lead to exists.
        let of_verbs = FLAGS_OF.iter().map(|(_, _, meaning)| meaning);
        for (verbs, _, _) in FLAGS_OF {
            assert!(verbs.iter().all(|verb| command.find_subcommand(verb).is_some()), "{verbs:?}");
        }
        let meanings = VERBS.iter().chain(FLAGS).map(|(_, meaning)| meaning);
        for meaning in meanings.chain(of_verbs) {
            let verbs = meaning
                .split("tutti ")
                .skip(1)
                .filter_map(|rest| rest.split([' ', ',', ';', ':']).next());
            for verb in verbs.filter(|verb| !verb.starts_with('-')) {
                assert!(command.find_subcommand(verb).is_some(), "'tutti {verb}' in '{meaning}'");
            }
        }
    }
}
