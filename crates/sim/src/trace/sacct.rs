//! Slurm's accounting: `sacct -P -o JobID,JobName,User,Account,Submit,Start,End,State,AllocTRES,...`.
//!
//! Any set of columns that says when a job came (`Submit`), how long it ran (`ElapsedRaw`,
//! `Elapsed`, or `Start` and `End`) and what it had (`AllocTRES` or `ReqTRES`). Steps are left out,
//! and so are jobs that never ran.

use tutti_model::{Bytes, GpuRequest, JobSpec, Span, Time};

use super::{BadLine, Problem, Row, Table, Trace, TraceJob};

pub fn read(text: &str) -> Result<Trace, BadLine> {
    let table = Table::new(text, '|')?;
    table.need(&["jobid", "submit"])?;
    let timed =
        table.has("elapsedraw") || table.has("elapsed") || (table.has("start") && table.has("end"));
    if !timed {
        return Err(BadLine { line: 1, problem: Problem::NoColumn("ElapsedRaw".to_owned()) });
    }
    if !table.has("alloctres") && !table.has("reqtres") {
        return Err(BadLine { line: 1, problem: Problem::NoColumn("AllocTRES".to_owned()) });
    }
    let mut jobs = Vec::new();
    let mut skipped = 0;
    for row in table.rows() {
        let row = row?;
        // `12.batch` is a step of 12; `12_[5-9]` are tasks that have not started.
        if row.text("jobid").contains(['.', '[']) {
            continue;
        }
        match elapsed(&row)? {
            Some(run) if run.0 > 0 => jobs.push(job(&row, run)?),
            _ => skipped += 1,
        }
    }
    Ok(Trace::sorted(jobs, skipped))
}

fn job(row: &Row<'_>, run: Span) -> Result<TraceJob, BadLine> {
    let text = |column| Some(row.text(column)).filter(|t| !t.is_empty()).map(str::to_owned);
    let tres = match row.text("alloctres") {
        "" => row.text("reqtres"),
        allocated => allocated,
    };
    let tres = Tres::read(row, tres)?;
    let mut spec = JobSpec::shell("slurm");
    spec.name = text("jobname").map(|n| n.chars().filter(|c| !c.is_control()).take(100).collect());
    spec.team = text("account");
    spec.nodes = Some(tres.nodes);
    spec.cpus_per_node = Some(tres.cpus.div_ceil(tres.nodes).max(1));
    spec.mem_per_node = Some(Bytes(tres.mem.0 / u64::from(tres.nodes)));
    if tres.gpus > 0 {
        let count = tres.gpus.div_ceil(tres.nodes);
        spec.gpus_per_node = Some(GpuRequest { model: tres.model, count });
    }
    spec.time = limit(row)?;
    Ok(TraceJob {
        name: row.text("jobid").to_owned(),
        submit: moment(row, "submit")?
            .ok_or_else(|| row.bad(Problem::Empty { column: "submit".to_owned() }))?,
        run,
        user: text("user").unwrap_or_else(|| "slurm".to_owned()),
        spec,
    })
}

fn elapsed(row: &Row<'_>) -> Result<Option<Span>, BadLine> {
    if !row.text("elapsedraw").is_empty() {
        return row.seconds("elapsedraw").map(Some);
    }
    if !row.text("elapsed").is_empty() {
        return clock_span(row, "elapsed").map(Some);
    }
    let both = (moment(row, "start")?, moment(row, "end")?);
    Ok(if let (Some(start), Some(end)) = both { Some(end.since(start)) } else { None })
}

fn limit(row: &Row<'_>) -> Result<Option<Span>, BadLine> {
    match row.text("timelimit") {
        "" | "UNLIMITED" | "Partition_Limit" => Ok(None),
        _ => clock_span(row, "timelimit").map(Some).map(|s| s.filter(|s| s.0 > 0)),
    }
}

/// `1-02:03:04`, `02:03:04` or `03:04`, as the model reads it, with fractions of seconds cut off.
fn clock_span(row: &Row<'_>, column: &str) -> Result<Span, BadLine> {
    let value = row.text(column);
    let whole = value.split_once('.').map_or(value, |(whole, _)| whole);
    let span = whole.contains(':').then(|| whole.parse::<Span>().ok()).flatten();
    let span = span.and_then(|s| row.span(column, s.0 as f64 / 1000.0).ok());
    span.ok_or_else(|| {
        let (column, value) = (column.to_owned(), value.to_owned());
        row.bad(Problem::NotA { column, value, wanted: "a time such as 1-02:03:04" })
    })
}

/// `2026-01-31T12:00:00`, or seconds since 1970. None for `Unknown` and `None`.
fn moment(row: &Row<'_>, column: &str) -> Result<Option<Time>, BadLine> {
    let value = row.text(column);
    if matches!(value, "" | "Unknown" | "None" | "N/A") {
        return Ok(None);
    }
    let seconds = value.parse::<u64>().ok().or_else(|| date(value));
    let seconds = seconds.filter(|s| *s < 1 << 40);
    seconds.map(|s| Some(Time(s * 1000))).ok_or_else(|| {
        let (column, value) = (column.to_owned(), value.to_owned());
        row.bad(Problem::NotA { column, value, wanted: "a time such as 2026-01-31T12:00:00" })
    })
}

fn date(text: &str) -> Option<u64> {
    let (day, clock) = text.split_once('T')?;
    let numbers =
        |t: &str, by| t.split(by).map(|n| n.parse::<u64>().ok()).collect::<Option<Vec<_>>>();
    let (day, clock) = (numbers(day, '-')?, numbers(clock, ':')?);
    let ([year, month, day], [h, m, s]) = (day.as_slice(), clock.as_slice()) else { return None };
    let sane = (1970..=9999).contains(year) && (1..=12).contains(month) && (1..=31).contains(day);
    if !sane || *h > 23 || *m > 59 || *s > 60 {
        return None;
    }
    Some(((days_to(*year, *month) + day - 1) * 24 + h) * 3600 + m * 60 + s)
}

/// Days from 1970 to the first of a month.
fn days_to(year: u64, month: u64) -> u64 {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let years: u64 = (1970..year).map(|y| 365 + u64::from(leap(y))).sum();
    let february = 28 + u64::from(leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30];
    years + lengths.iter().take(month as usize - 1).sum::<u64>()
}

/// `billing=8,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=512G,node=1`.
struct Tres {
    nodes: u32,
    gpus: u32,
    model: Option<String>,
    cpus: u32,
    mem: Bytes,
}

impl Tres {
    fn read(row: &Row<'_>, text: &str) -> Result<Tres, BadLine> {
        let mut tres = Tres { nodes: 1, gpus: 0, model: None, cpus: 0, mem: Bytes(0) };
        for item in text.split(',').filter(|i| !i.is_empty()) {
            let bad = || {
                let (column, value) = ("AllocTRES".to_owned(), item.to_owned());
                row.bad(Problem::NotA { column, value, wanted: "name=number" })
            };
            let (key, value) = item.split_once('=').ok_or_else(bad)?;
            let count = || value.parse::<u32>().ok().filter(|n| *n < 1 << 24).ok_or_else(bad);
            match key {
                "node" => tres.nodes = count()?.max(1),
                "cpu" => tres.cpus = count()?,
                "mem" => tres.mem = mem(value).ok_or_else(bad)?,
                "gres/gpu" => tres.gpus = count()?,
                _ => {
                    if let Some(model) = key.strip_prefix("gres/gpu:") {
                        tres.model = Some(model.to_ascii_lowercase());
                        tres.gpus = tres.gpus.max(count()?);
                    }
                }
            }
        }
        Ok(tres)
    }
}

/// Slurm writes `62.50G` too.
fn mem(text: &str) -> Option<Bytes> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let unit: Bytes = format!("1{}", if text[digits..].is_empty() { "M" } else { &text[digits..] })
        .parse()
        .ok()?;
    let bytes = number * unit.0 as f64;
    (0.0..1e18).contains(&bytes).then_some(Bytes(bytes as u64))
}
