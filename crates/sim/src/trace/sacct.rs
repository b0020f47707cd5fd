//! Slurm's accounting: `sacct -P -o JobID,JobName,User,Account,Submit,Start,End,State,AllocTRES,...`.
//!
//! Any set of columns that says when a job came (`Submit`), how long it ran (`ElapsedRaw`,
//! `Elapsed`, or `Start` and `End`) and what it had (`AllocTRES` or `ReqTRES`). Steps are left out,
//! and so are jobs that never ran.

use std::collections::BTreeMap;

use tutti_model::{Bytes, GpuRequest, JobSpec, Span, Time};

use super::{BadLine, COUNT_MAX, Manner, Problem, Row, Table, Trace, TraceJob};

pub fn read(text: &str) -> Result<Trace, BadLine> {
    let table = Table::without_quotes(text, '|')?;
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
        let id = row.text("jobid");
        if let Some((_, waiting)) = id.split_once('[') {
            skipped += tasks(waiting);
            continue;
        }
        if id.contains('.') {
            continue;
        }
        match elapsed(&row)? {
            Some(run) if run.0 > 0 => jobs.push(job(&row, run)?),
            _ => skipped += 1,
        }
    }
    Ok(Trace::dated(jobs, skipped))
}

/// How many tasks `5-9%2]` or `1,3,7-8]` names. Slurm cuts long lists off with dots; what it does
/// not say counts as one.
fn tasks(list: &str) -> usize {
    let list = list.split([']', '%']).next().unwrap_or_default();
    let of = |range: &str| {
        let (from, to) = range.split_once('-')?;
        let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
        to.checked_sub(from)?.checked_add(1).filter(|n| *n <= COUNT_MAX as usize)
    };
    list.split(',').map(|range| of(range).unwrap_or(1)).sum()
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
    tres.ask(&mut spec);
    // A job that is stopped at its limit takes a moment to go, and Slurm counts that.
    spec.time = limit(row)?.map(|limit| limit.max(run));
    Ok(TraceJob {
        name: row.text("jobid").to_owned(),
        submit: moment(row, "submit")?
            .ok_or_else(|| row.bad(Problem::Empty { column: "submit".to_owned() }))?,
        run,
        user: text("user").unwrap_or_else(|| "slurm".to_owned()),
        spec,
        manner: Manner::default(),
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
    let sane = (1970..=9999).contains(year) && (1..=12).contains(month);
    if !sane || *h > 23 || *m > 59 || *s > 60 {
        return None;
    }
    let month_has = days_to(*year, *month + 1) - days_to(*year, *month);
    let known = (1..=month_has).contains(day);
    known.then(|| ((days_to(*year, *month) + day - 1) * 24 + h) * 3600 + m * 60 + s)
}

/// Days from 1970 to the first of a month; month 13 is next January.
fn days_to(year: u64, month: u64) -> u64 {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let years: u64 = (1970..year).map(|y| 365 + u64::from(leap(y))).sum();
    let february = 28 + u64::from(leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    years + lengths.iter().take(month as usize - 1).sum::<u64>()
}

/// `billing=8,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=512G,node=1`.
struct Tres {
    nodes: u32,
    gpus: u32,
    /// `a100|v100` where both are there.
    model: Option<String>,
    cpus: u32,
    mem: Bytes,
}

impl Tres {
    fn read(row: &Row<'_>, text: &str) -> Result<Tres, BadLine> {
        let mut tres = Tres { nodes: 1, gpus: 0, model: None, cpus: 0, mem: Bytes(0) };
        let mut by_model: BTreeMap<String, u32> = BTreeMap::new();
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
                        by_model.insert(model.to_ascii_lowercase(), count()?);
                    }
                }
            }
        }
        by_model.retain(|_, count| *count > 0);
        tres.gpus = tres.gpus.max(by_model.values().sum());
        let models: Vec<String> = by_model.into_keys().collect();
        tres.model = Some(models.join("|")).filter(|m| !m.is_empty());
        Ok(tres)
    }

    /// Slurm counts totals. What does not divide over the nodes is a total here too: of any model,
    /// since a total has no place for one.
    fn ask(self, spec: &mut JobSpec) {
        let nodes = self.nodes;
        if !self.gpus.is_multiple_of(nodes) {
            let among = self.gpus.max(nodes);
            spec.gpus = Some(self.gpus);
            spec.cpus_per_gpu = Some((self.cpus / among).max(1));
            spec.mem_per_gpu = Some(Bytes(self.mem.0 / u64::from(among)));
            return;
        }
        spec.nodes = Some(nodes);
        spec.cpus_per_node = Some(self.cpus.div_ceil(nodes).max(1));
        spec.mem_per_node = Some(Bytes(self.mem.0 / u64::from(nodes)));
        if self.gpus > 0 {
            let count = self.gpus / nodes;
            spec.gpus_per_node = Some(GpuRequest { model: self.model, count });
        }
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
