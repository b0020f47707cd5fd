//! What a simulation prints and writes.

use std::path::Path;

use serde::Serialize;
use tutti_model::Span;
use tutti_sim::replay::openb::Allocation;
use tutti_sim::replay::{Run, Spreading};
use tutti_sim::report::{Figures, Series, jobs_csv, page, series};

use super::SimArgs;
use crate::fail::Fail;
use crate::show::table::{Grid, plain, terminal_width};
use crate::show::time::short;
use crate::show::{count, thousands};
use crate::style::Style;
use crate::terminal;

/// Steps of the curves in JSON.
const STEPS: usize = 100;

#[derive(Serialize)]
struct RunJson<'a> {
    #[serde(flatten)]
    figures: &'a Figures,
    /// Jobs of the trace that were left out because they never ran.
    skipped: usize,
    series: Series,
}

/// One run is an object; several are `{"runs": [...]}`.
fn print_json<T: Serialize>(mut runs: Vec<T>) -> Result<(), Fail> {
    if runs.len() == 1 {
        return terminal::json(&runs.remove(0));
    }
    terminal::json(&serde_json::json!({ "runs": serde_json::to_value(runs).map_err(unwritable)? }))
}

fn unwritable(e: serde_json::Error) -> Fail {
    Fail::new(format!("can't write JSON: {e}"))
}

fn write(path: &Path, text: &str) -> Result<(), Fail> {
    std::fs::write(path, text)
        .map_err(|e| Fail::new(format!("can't write {}: {e}", path.display())))
}

pub fn runs(
    args: &SimArgs,
    note: &str,
    skipped: usize,
    spreading: Option<&Spreading>,
    runs: &[(Figures, Run)],
) -> Result<(), Fail> {
    if let Some(path) = &args.csv {
        write(path, &jobs_csv(runs.iter().map(|(f, r)| (f.policy.as_str(), f.seed, r))))?;
    }
    if let Some(path) = &args.html {
        write(path, &page(&format!("tutti sim: {note}"), runs))?;
    }
    if args.json {
        let rows = runs.iter().map(|(figures, run)| RunJson {
            figures,
            skipped,
            series: series(run, STEPS),
        });
        return print_json(rows.collect());
    }
    terminal::say(note);
    if let Some(spreading) = spreading {
        terminal::say(&spreading_line(spreading));
    }
    let figures: Vec<&Figures> = runs.iter().map(|(f, _)| f).collect();
    terminal::say(&table(&figures, Style::of_stdout(), terminal_width()));
    terminal::say(&footnotes(&figures));
    Ok(())
}

fn spreading_line(spreading: &Spreading) -> String {
    let rows = spreading.table().iter().map(|(gpus, speed)| {
        let gpus = count((*gpus).into(), "GPU");
        format!("{gpus} {speed:.2}")
    });
    let rows: Vec<String> = rows.collect();
    format!("a gang on more racks or nodes than it needs runs at this speed: {}", rows.join(", "))
}

type Row = (&'static str, fn(&Figures) -> String);

const ROWS: [Row; 20] = [
    ("jobs", |f| thousands(f.jobs)),
    ("completed", |f| thousands(f.completed)),
    ("failed", |f| thousands(f.failed)),
    ("refused", |f| thousands(f.refused)),
    ("stuck", |f| thousands(f.stuck)),
    ("never end, so often nodes fail", |f| thousands(f.hopeless)),
    ("mean completion time", |f| time(f.avg_jct_s)),
    ("median", |f| time(f.median_jct_s)),
    ("p95", |f| time(f.p95_jct_s)),
    ("p99", |f| time(f.p99_jct_s)),
    ("mean wait", |f| time(f.avg_wait_s)),
    ("p99 wait", |f| time(f.p99_wait_s)),
    ("makespan", |f| time(f.makespan_s)),
    ("GPUs in use", |f| format!("{:.1} %", f.utilisation * 100.0)),
    ("mean queue", |f| format!("{:.1}", f.queue_avg)),
    ("preemptions", |f| thousands(f.preemptions)),
    ("node failures", |f| thousands(f.node_failures)),
    ("GPU-hours lost", |f| format!("{:.1}", f.gpu_hours_lost)),
    ("on more racks than needed", |f| thousands(f.spread_jobs)),
    ("racks per job, needed", |f| {
        let jobs = (f.completed + f.failed + f.hopeless).max(1) as f64;
        format!("{:.2}, {:.2}", f.racks_spanned as f64 / jobs, f.racks_needed as f64 / jobs)
    }),
];

fn time(seconds: f64) -> String {
    short(Span((seconds * 1000.0) as u64))
}

fn table(figures: &[&Figures], style: Style, width: Option<u16>) -> String {
    let seeds = figures.iter().any(|f| f.seed != figures[0].seed);
    let names = figures.iter().map(|f| match seeds {
        true => format!(">{} ({})", f.policy, f.seed),
        false => format!(">{}", f.policy),
    });
    let head: Vec<String> = std::iter::once(String::new()).chain(names).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let mut grid = Grid::new(&head, style);
    for (label, value) in ROWS {
        let cells = figures.iter().map(|f| plain(value(f)));
        grid.row(std::iter::once(plain(label)).chain(cells));
    }
    grid.render(width)
}

/// Shares of teams, and why jobs were refused.
fn footnotes(figures: &[&Figures]) -> String {
    let mut lines = Vec::new();
    for f in figures.iter().filter(|f| f.teams.len() > 1) {
        let share = |(name, t): (&String, &tutti_sim::report::TeamFigures)| {
            format!("{name} {:.1} %", t.share * 100.0)
        };
        let shares: Vec<String> = f.teams.iter().map(share).collect();
        lines.push(format!("{}: of the GPU-hours had {}", f.policy, shares.join(", ")));
    }
    // Policies often refuse the same; then it is said once.
    let same = figures.iter().all(|f| f.refusals == figures[0].refusals);
    for f in figures.iter().take(if same { 1 } else { figures.len() }) {
        let whose = if same { String::new() } else { format!("{}: ", f.policy) };
        let refused = f.refusals.iter();
        lines.extend(refused.map(|(why, n)| format!("{whose}{} refused: {why}", thousands(*n))));
    }
    lines.join("\n")
}

#[derive(Serialize)]
struct AllocationJson<'a> {
    policy: &'a str,
    /// Per cent of the GPUs, when as much had been asked for as there is.
    allocation_at_100: Option<f64>,
    allocation_at_130: Option<f64>,
    allocation_at_end: f64,
    pods: u64,
    placed: u64,
    events: u64,
    /// Per cent arrived, and per cent allocated then.
    curve: Vec<(usize, f64)>,
}

pub fn allocations(args: &SimArgs, runs: &[(String, Allocation)]) -> Result<(), Fail> {
    if args.json {
        let json = runs.iter().map(|(policy, a)| AllocationJson {
            policy,
            allocation_at_100: a.at(100),
            allocation_at_130: a.at(130),
            allocation_at_end: a.final_per_cent,
            pods: a.pods,
            placed: a.placed,
            events: a.events,
            curve: a.curve().collect(),
        });
        return print_json(json.collect());
    }
    let per_cent = |a: Option<f64>| a.map_or_else(|| "-".to_owned(), |a| format!("{a:.2} %"));
    let head = ["POLICY", ">PODS", ">PLACED", ">AT 100 %", ">AT 130 %", ">AT THE END"];
    let mut grid = Grid::new(&head, Style::of_stdout());
    for (policy, a) in runs {
        let at_end = per_cent(Some(a.final_per_cent));
        let (pods, placed) = (thousands(a.pods), thousands(a.placed));
        let cells =
            [policy.clone(), pods, placed, per_cent(a.at(100)), per_cent(a.at(130)), at_end];
        grid.row(cells.map(plain));
    }
    terminal::say(&grid.render(terminal_width()));
    Ok(())
}
