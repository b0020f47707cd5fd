//! One page with everything on it: figures side by side, then utilisation, queue and Gantt plots of
//! each run. Needs no network, no script and no other file; follows the reader's light or dark.

use super::plot::{self, duration, escape, push};
use super::{Figures, series};
use crate::replay::Run;

const STYLE: &str = include_str!("page.css");
const STEPS: usize = 400;

/// `title` says what was simulated.
pub fn page(title: &str, runs: &[(Figures, Run)]) -> String {
    let title = escape(title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
    );
    table(&mut out, runs);
    teams(&mut out, runs);
    for (figures, run) in runs {
        plots(&mut out, figures, run);
    }
    out.push_str("</body></html>\n");
    out
}

type Line = (&'static str, fn(&Figures) -> String);

const LINES: [Line; 19] = [
    ("jobs", |f| f.jobs.to_string()),
    ("completed", |f| f.completed.to_string()),
    ("failed", |f| f.failed.to_string()),
    ("refused", |f| f.refused.to_string()),
    ("stuck", |f| f.stuck.to_string()),
    ("never end, so often nodes fail", |f| f.hopeless.to_string()),
    ("mean completion time", |f| duration(f.avg_jct_s)),
    ("median", |f| duration(f.median_jct_s)),
    ("95 % within", |f| duration(f.p95_jct_s)),
    ("99 % within", |f| duration(f.p99_jct_s)),
    ("mean wait", |f| duration(f.avg_wait_s)),
    ("99 % wait less than", |f| duration(f.p99_wait_s)),
    ("last job ended after", |f| duration(f.makespan_s)),
    ("GPUs in use", |f| format!("{:.1} % of {}", f.utilisation * 100.0, f.gpus)),
    ("GPU-hours", |f| format!("{:.0}", f.gpu_hours)),
    ("GPU-hours lost", |f| format!("{:.1}", f.gpu_hours_lost)),
    ("preemptions", |f| f.preemptions.to_string()),
    ("node failures", |f| f.node_failures.to_string()),
    ("jobs on more racks than needed", |f| f.spread_jobs.to_string()),
];

fn table(out: &mut String, runs: &[(Figures, Run)]) {
    out.push_str("<div class=\"wide\"><table><thead><tr><th></th>");
    for (figures, _) in runs {
        push(out, format_args!("<th>{}</th>", escape(&name(figures, runs))));
    }
    out.push_str("</tr></thead><tbody>");
    for (label, value) in LINES {
        push(out, format_args!("<tr><td>{label}</td>"));
        for (figures, _) in runs {
            push(out, format_args!("<td>{}</td>", value(figures)));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

/// The policy, and the seed where there are several.
fn name(figures: &Figures, runs: &[(Figures, Run)]) -> String {
    let seeds = runs.iter().any(|(f, _)| f.seed != figures.seed);
    if seeds {
        format!("{}, seed {}", figures.policy, figures.seed)
    } else {
        figures.policy.clone()
    }
}

fn teams(out: &mut String, runs: &[(Figures, Run)]) {
    if runs.iter().all(|(f, _)| f.teams.len() < 2) {
        return;
    }
    out.push_str("<h2>Teams</h2><div class=\"wide\"><table><thead><tr><th>team</th>");
    for (figures, _) in runs {
        push(
            out,
            format_args!("<th>share, {}</th><th>mean time</th>", escape(&name(figures, runs))),
        );
    }
    out.push_str("</tr></thead><tbody>");
    let mut names: Vec<&String> = runs.iter().flat_map(|(f, _)| f.teams.keys()).collect();
    names.sort();
    names.dedup();
    for team in names {
        push(out, format_args!("<tr><td>{}</td>", escape(team)));
        for (figures, _) in runs {
            let (share, jct) =
                figures.teams.get(team).map_or((0.0, 0.0), |t| (t.share, t.avg_jct_s));
            push(out, format_args!("<td>{:.1} %</td><td>{}</td>", share * 100.0, duration(jct)));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn plots(out: &mut String, figures: &Figures, run: &Run) {
    let series = series(run, STEPS);
    let seed =
        if figures.node_failures > 0 { format!(", seed {}", figures.seed) } else { String::new() };
    push(out, format_args!("<h2>{}{seed}</h2>", escape(&figures.policy)));
    let used: Vec<f64> = series.utilisation.iter().map(|u| u * 100.0).collect();
    out.push_str("<h3>GPUs in use</h3>");
    out.push_str(&plot::line("GPUs in use", &used, series.step_s, 100.0, " %"));
    let most = series.waiting.iter().copied().fold(1.0, f64::max);
    out.push_str("<h3>Jobs that wait</h3>");
    out.push_str(&plot::line("Jobs that wait", &series.waiting, series.step_s, most, ""));
    if run.nodes.is_empty() {
        return;
    }
    let (gantt, note) = plot::gantt(run);
    out.push_str("<h3>Who ran where</h3>");
    out.push_str(&gantt);
    if let Some(note) = note {
        push(out, format_args!("<p class=\"note\">{note}</p>"));
    }
}
