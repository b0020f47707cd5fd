//! The report in words. Pure: colour and the program's name are arguments.

use std::collections::BTreeMap;
use std::path::Path;

use tutti_model::{JobState, Restarts};

use super::report::{ChainFigures, GangFigures, NodeLossFigures, Report, ServingFigures, Totals};
use crate::show::{count, harmless};
use crate::style::{Ink, Style};

/// Longer lines are hard to read, whatever the terminal.
const WIDTH_MAX: usize = 96;
const NAME_WIDTH: usize = 11;

/// `program` is how the user called us, so that commands can be copied.
pub fn text(report: &Report, program: &str, style: Style, width: Option<u16>) -> String {
    let width = width.map_or(WIDTH_MAX, usize::from).min(WIDTH_MAX);
    let mut out = vec![style.paint(
        Ink::Bold,
        &format!(
            "What happened on {} nodes × {} simulated GPUs, in {:.0} seconds:",
            report.cluster.nodes, report.cluster.gpus_per_node, report.seconds
        ),
    )];
    for (name, text) in scenes(report) {
        let lines = wrap(&harmless(&text), width.saturating_sub(NAME_WIDTH + 2));
        for (i, line) in lines.iter().enumerate() {
            let head = if i == 0 { name } else { "" };
            let head = style.paint(Ink::Cyan, &format!("{head:<NAME_WIDTH$}"));
            out.push(format!("  {head}{line}"));
        }
    }
    out.push(String::new());
    out.extend(match &report.kept_in {
        Some(dir) => kept(report, dir, program, style),
        None => go_on(program, style),
    });
    out.join("\n")
}

fn scenes(r: &Report) -> Vec<(&'static str, String)> {
    let array = format!(
        "{} in {}, {:.0} tasks/s, {}",
        count(r.array.tasks, "task"),
        seconds_text(r.array.seconds),
        r.array.tasks_per_second,
        codes(&r.array.exit_codes)
    );
    vec![
        (
            "cluster",
            format!(
                "a controller, {} agents and a router up in {}",
                r.cluster.nodes,
                seconds_text(r.cluster.up_seconds)
            ),
        ),
        ("gang", gang(&r.gang)),
        ("waiting", waiting(&r.gang)),
        ("array", array),
        ("chain", chain(&r.chain)),
        ("node loss", node_loss(&r.node_loss)),
        ("loss", format!("until {} died {}", r.node_loss.killed_node, r.node_loss.curves[0])),
        (
            "",
            format!(
                "and from step {} on {}",
                r.node_loss.resumed_after_step, r.node_loss.curves[1]
            ),
        ),
        ("serving", serving(&r.serving)),
        ("totals", totals(&r.totals)),
    ]
}

fn gang(g: &GangFigures) -> String {
    format!(
        "{} ranks on {} nodes ran together {} after submission and trained a transformer for {} \
         steps, {} by data, tensor and pipeline: loss {:.2} to {:.4}, the same on every rank, {:.0} \
         tokens/s, exit code {}",
        g.ranks,
        g.nodes,
        seconds_text(g.start_seconds),
        g.steps,
        super::training::LAYOUT,
        g.first_loss,
        g.loss,
        g.tokens_per_s,
        g.exit_code
    )
}

fn waiting(g: &GangFigures) -> String {
    let w = &g.waiting;
    format!(
        "meanwhile job {} for 2 whole nodes waited {} and said why: \"{}\"",
        w.job,
        seconds_text(w.waited_seconds),
        w.note
    )
}

fn chain(c: &ChainFigures) -> String {
    let ran: Vec<&str> =
        c.jobs.iter().filter(|j| j.state == JobState::Completed).map(|j| j.name.as_str()).collect();
    let cancelled = c.jobs.iter().filter(|j| j.state == JobState::Cancelled).map(|j| {
        format!("; {} (after {}) was cancelled: \"{}\"", j.name, j.after.join(", "), j.note)
    });
    let took = seconds_text(c.seconds);
    format!("{} in {took}{}", ran.join(" → "), cancelled.collect::<String>())
}

fn node_loss(n: &NodeLossFigures) -> String {
    format!(
        "{} was killed with all its {} processes at step {} of the same training: noticed after \
         {}, all {} ranks running again on {} after {}; went on from the checkpoint of step {} and \
         ended after {} with loss {:.4}, the same as undisturbed, exit code {}; {} was ready again \
         {} after its restart",
        n.killed_node,
        n.killed_processes,
        n.reached_step,
        seconds_text(n.noticed_seconds),
        n.ranks,
        n.nodes_after.join(", "),
        seconds_text(n.running_again_seconds),
        n.resumed_after_step,
        n.steps,
        n.loss,
        n.exit_code,
        n.killed_node,
        seconds_text(n.node_back_seconds)
    )
}

fn serving(s: &ServingFigures) -> String {
    format!(
        "the trained model as an endpoint, ready {} after the command; asked \"{}\" through the router, \
         it went on \"{}\": {} in {}, of a model that has seen {} steps",
        seconds_text(s.ready_seconds),
        s.prompt,
        s.answer.escape_debug(),
        count(s.answer_tokens.into(), "token"),
        seconds_text(s.answer_seconds),
        super::training::STEPS
    )
}

fn totals(t: &Totals) -> String {
    let state = |s: JobState| t.tasks.get(s.as_str()).copied().unwrap_or_default();
    let [completed, failed, cancelled] =
        [JobState::Completed, JobState::Failed, JobState::Cancelled].map(state);
    let Restarts { node_failure, preemption, job_failure, health } = t.restarts;
    let broken = match health {
        0 => String::new(),
        n => format!(", {n} for broken GPUs"),
    };
    format!(
        "{}: {completed} tasks completed, {failed} failed, {cancelled} cancelled; {}; \
         restarts: {node_failure} for node failure, {preemption} for preemption, {job_failure} for \
         the job's own failure{broken}",
        count(t.jobs, "job"),
        codes(&t.exit_codes)
    )
}

fn codes(codes: &BTreeMap<i32, u64>) -> String {
    if let (1, Some(code)) = (codes.len(), codes.keys().next()) {
        return format!("every exit code {code}");
    }
    let each: Vec<String> =
        codes.iter().map(|(code, n)| format!("{code} ({})", count(*n, "time"))).collect();
    format!("exit codes {}", each.join(", "))
}

/// `45 ms`, `0.79 s`, `8.6 s`: no more digits than mean something.
pub fn seconds_text(seconds: f64) -> String {
    match seconds {
        s if s < 0.1 => format!("{:.0} ms", (s * 1000.0).ceil()),
        s if s < 1.0 => format!("{s:.2} s"),
        s => format!("{s:.1} s"),
    }
}

fn go_on(program: &str, style: Style) -> Vec<String> {
    let mut out = vec![style.paint(Ink::Bold, "Go on:")];
    out.extend(commands(&[
        (format!("{program} demo --keep"), "the same, and the cluster stays up for you"),
        (format!("{program} up --detach"), "your own cluster; real GPUs if this machine has them"),
        (format!("{program} run -G 2 -- env"), "a command on 2 GPUs of it, as if it ran here"),
        (format!("{program} help"), "every verb"),
    ]));
    out
}

fn kept(r: &Report, dir: &Path, program: &str, style: Style) -> Vec<String> {
    let dir = quoted(dir);
    let mut out = vec![style.paint(
        Ink::Bold,
        &format!(
            "The cluster is still up: {} nodes × {} simulated GPUs. Go on:",
            r.cluster.nodes, r.cluster.gpus_per_node
        ),
    )];
    out.extend(commands(&[
        (format!("export TUTTI_CLUSTER={dir}"), "use it in this shell"),
        (format!("{program} ps --all"), "what ran"),
        (format!("{program} show {}", r.node_loss.job), "the gang that lost its node"),
        (format!("{program} logs {}", r.node_loss.job), "what its ranks said"),
        (format!("{program} run -N 2 -G 2 -- env"), "a gang of your own"),
        (format!("{program} nodes"), "the nodes and their GPUs"),
        (format!("{program} down --data-dir {dir} && rm -r {dir}"), "stop and remove it"),
    ]));
    out
}

/// What each is for stands beside it, or above it where the command is long.
fn commands(list: &[(String, &str)]) -> Vec<String> {
    const COLUMN: usize = 46;
    let mut out = Vec::new();
    for (command, what) in list {
        if command.chars().count() < COLUMN {
            out.push(format!("  {command:<COLUMN$}# {what}"));
        } else {
            out.push(format!("  # {what}"));
            out.push(format!("  {command}"));
        }
    }
    out
}

/// As the shell wants it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if text.chars().all(safe) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Lines of at most `width` characters, broken between words.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        let Some(line) = lines.last_mut() else { continue };
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    lines
}

#[cfg(test)]
mod tests;
