//! Every option of `sbatch` that is known, and what becomes of it.

pub(super) struct Known {
    pub long: &'static str,
    pub short: Option<char>,
    pub takes: Takes,
    pub does: Does,
}

pub(super) enum Takes {
    Nothing,
    Value,
    /// Only glued to it: `--nice=5`.
    Optional,
}

pub(super) enum Does {
    Something,
    /// Has no effect here; the reason goes into a warning.
    Nothing(&'static str),
    /// To ignore it would change what the job does.
    Refused(&'static str),
}

const fn used(short: char, long: &'static str) -> Known {
    let short = if short == ' ' { None } else { Some(short) };
    Known { long, short, takes: Takes::Value, does: Does::Something }
}

const fn flag(short: char, long: &'static str) -> Known {
    Known { takes: Takes::Nothing, ..used(short, long) }
}

const fn ignored(short: char, long: &'static str, takes: Takes, why: &'static str) -> Known {
    let short = if short == ' ' { None } else { Some(short) };
    Known { long, short, takes, does: Does::Nothing(why) }
}

const fn refused(short: char, long: &'static str, takes: Takes, why: &'static str) -> Known {
    let short = if short == ' ' { None } else { Some(short) };
    Known { long, short, takes, does: Does::Refused(why) }
}

const LOGS: &str = "tutti keeps the output (tutti logs)";
const MAIL: &str = "tutti sends no mail";
const PLACE: &str = "the scheduler chooses the nodes";
const CORES: &str = "CPUs are counted, not laid out";
const LOCAL: &str = "it only concerns the sbatch command";
const NO_SUCH: &str = "there is nothing like it here";
const GPU_TUNING: &str = "GPUs are given as they are";

pub(super) const KNOWN: &[Known] = &[
    used('J', "job-name"),
    used('N', "nodes"),
    used('n', "ntasks"),
    used(' ', "ntasks-per-node"),
    used('c', "cpus-per-task"),
    used(' ', "cpus-per-gpu"),
    used(' ', "gres"),
    used('G', "gpus"),
    used(' ', "gpus-per-node"),
    used(' ', "gpus-per-task"),
    used(' ', "mem"),
    used(' ', "mem-per-gpu"),
    used(' ', "mem-per-cpu"),
    used('t', "time"),
    used('a', "array"),
    used('d', "dependency"),
    used('A', "account"),
    used('D', "chdir"),
    used(' ', "export"),
    flag(' ', "requeue"),
    flag(' ', "no-requeue"),
    flag('H', "hold"),
    Known { takes: Takes::Optional, ..used(' ', "nice") },
    used(' ', "priority"),
    used('q', "qos"),
    used('C', "constraint"),
    used(' ', "switches"),
    Known { takes: Takes::Optional, ..used(' ', "exclusive") },
    ignored('p', "partition", Takes::Value, "there are no partitions; --account names the team"),
    ignored('o', "output", Takes::Value, LOGS),
    ignored('e', "error", Takes::Value, LOGS),
    ignored(' ', "open-mode", Takes::Value, LOGS),
    ignored(' ', "mail-type", Takes::Value, MAIL),
    ignored(' ', "mail-user", Takes::Value, MAIL),
    ignored(
        ' ',
        "signal",
        Takes::Value,
        "a job is asked to save by [checkpoint] of a TOML job file; it always gets SIGTERM first",
    ),
    ignored(' ', "prefer", Takes::Value, PLACE),
    ignored('w', "nodelist", Takes::Value, PLACE),
    ignored('F', "nodefile", Takes::Value, PLACE),
    ignored('x', "exclude", Takes::Value, PLACE),
    ignored(' ', "contiguous", Takes::Nothing, PLACE),
    ignored(' ', "spread-job", Takes::Nothing, PLACE),
    ignored(' ', "use-min-nodes", Takes::Nothing, PLACE),
    ignored('s', "oversubscribe", Takes::Nothing, "CPUs and GPUs are never shared by accident"),
    ignored('O', "overcommit", Takes::Nothing, "CPUs and GPUs are never shared by accident"),
    ignored(' ', "reservation", Takes::Value, "jobs of the team that a reservation is for use it"),
    ignored('L', "licenses", Takes::Value, "licences are not counted"),
    ignored('M', "clusters", Takes::Value, "choose the cluster with --cluster"),
    ignored(' ', "comment", Takes::Value, NO_SUCH),
    ignored(' ', "wckey", Takes::Value, NO_SUCH),
    ignored(' ', "profile", Takes::Value, NO_SUCH),
    ignored(' ', "acctg-freq", Takes::Value, NO_SUCH),
    ignored(' ', "power", Takes::Value, NO_SUCH),
    ignored('S', "core-spec", Takes::Value, NO_SUCH),
    ignored(' ', "thread-spec", Takes::Value, NO_SUCH),
    ignored(' ', "tmp", Takes::Value, "local disk is not counted"),
    ignored(' ', "hint", Takes::Value, CORES),
    ignored(' ', "threads-per-core", Takes::Value, CORES),
    ignored(' ', "cores-per-socket", Takes::Value, CORES),
    ignored(' ', "sockets-per-node", Takes::Value, CORES),
    ignored(' ', "ntasks-per-core", Takes::Value, CORES),
    ignored(' ', "ntasks-per-socket", Takes::Value, CORES),
    ignored(' ', "ntasks-per-gpu", Takes::Value, CORES),
    ignored(' ', "mincpus", Takes::Value, CORES),
    ignored('B', "extra-node-info", Takes::Value, CORES),
    ignored('m', "distribution", Takes::Value, CORES),
    ignored(' ', "mem-bind", Takes::Value, CORES),
    ignored(' ', "cpu-freq", Takes::Value, CORES),
    ignored(' ', "gpu-bind", Takes::Value, GPU_TUNING),
    ignored(' ', "gpu-freq", Takes::Value, GPU_TUNING),
    ignored(' ', "gres-flags", Takes::Value, GPU_TUNING),
    ignored(' ', "gpus-per-socket", Takes::Value, GPU_TUNING),
    ignored(' ', "kill-on-invalid-dep", Takes::Value, "an unmet dependency always cancels"),
    ignored('k', "no-kill", Takes::Nothing, "a gang runs whole or not at all"),
    ignored(' ', "propagate", Takes::Optional, "limits are the node's"),
    ignored(' ', "get-user-env", Takes::Optional, "the caller's environment is used"),
    ignored(' ', "export-file", Takes::Value, "use --export"),
    ignored(' ', "delay-boot", Takes::Value, NO_SUCH),
    ignored(' ', "reboot", Takes::Nothing, "nodes are not rebooted for a job"),
    ignored(' ', "ignore-pbs", Takes::Nothing, LOCAL),
    ignored(' ', "parsable", Takes::Nothing, LOCAL),
    ignored('v', "verbose", Takes::Nothing, LOCAL),
    ignored('Q', "quiet", Takes::Nothing, LOCAL),
    ignored('W', "wait", Takes::Nothing, "use tutti submit --wait"),
    ignored('I', "immediate", Takes::Optional, NO_SUCH),
    refused('b', "begin", Takes::Value, "jobs can't be told to start later; use --hold"),
    refused(' ', "deadline", Takes::Value, "there are no deadlines; use --time"),
    refused('i', "input", Takes::Value, "redirect it in the script"),
    refused(' ', "wrap", Takes::Value, "use tutti submit --wrap"),
    refused(' ', "test-only", Takes::Nothing, "nothing is submitted just to look"),
    refused(' ', "uid", Takes::Value, "a job runs as the user who submits it"),
    refused(' ', "gid", Takes::Value, "a job runs as the user who submits it"),
    refused(' ', "bb", Takes::Value, "there are no burst buffers"),
    refused(' ', "bbf", Takes::Value, "there are no burst buffers"),
    refused(' ', "container", Takes::Value, "there are no containers yet"),
];
