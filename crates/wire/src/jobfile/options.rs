//! The options of `sbatch`: which there are, what they take, and what they mean here.

use std::collections::BTreeMap;

use tutti_model::{
    Bytes, DependOn, Dependency, GpuRequest, JobId, JobSpec, Priority, Retry, Span, Topology,
    count, name_problem, variable_name_problem,
};

use super::Inherit;
use super::script::Word;
use crate::textfile::error::{FileError, Problem, nearest};
use crate::textfile::tree::Place;

mod known;
use known::{Does, KNOWN, Known, Takes};

/// One option as it was written.
pub(super) struct Chosen {
    at: Place,
    /// As written, for messages.
    shown: String,
    known: &'static Known,
    value: Option<String>,
    value_at: Place,
}

impl Chosen {
    /// `--nodes=2`, `--nodes 2`, `-N 2` and `-N2` are one thing.
    pub fn from_words(words: &[Word]) -> Result<Vec<Chosen>, FileError> {
        let mut chosen = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (known, glued, shown) = identify(word)?;
            let offset = word.text.chars().count() - glued.map_or(0, |g| g.chars().count());
            let mut value = glued.map(str::to_owned);
            let mut value_at = Place { column: word.at.column + offset as u32, ..word.at };
            match known.takes {
                Takes::Nothing if value.is_some() => {
                    return Err(FileError::of_key(word.at, shown, Problem::TakesNoValue));
                }
                Takes::Value if value.is_none() => {
                    let next = words.next().ok_or_else(|| {
                        FileError::of_key(word.at, shown.clone(), Problem::NeedsValue)
                    })?;
                    (value, value_at) = (Some(next.text.clone()), next.at);
                }
                _ => {}
            }
            chosen.push(Chosen { at: word.at, shown, known, value, value_at });
        }
        Ok(chosen)
    }

    fn name(&self) -> Result<String, FileError> {
        let text = self.text();
        name_problem(text).map_or_else(|| Ok(text.to_owned()), |why| Err(self.bad(why)))
    }

    fn bad(&self, why: String) -> FileError {
        FileError::of_key(self.value_at, self.shown.clone(), Problem::BadValue(why))
    }

    fn text(&self) -> &str {
        self.value.as_deref().unwrap_or_default()
    }

    fn number(&self, least: u32) -> Result<u32, FileError> {
        let text = self.text();
        text.parse()
            .ok()
            .filter(|&n| n >= least)
            .ok_or_else(|| self.bad(format!("'{text}' is not a whole number from {least} up")))
    }

    fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(&self) -> Result<T, FileError> {
        self.text().parse().map_err(|e: T::Err| self.bad(e.to_string()))
    }
}

/// Which option a word is, and the value glued to it.
fn identify(word: &Word) -> Result<(&'static Known, Option<&str>, String), FileError> {
    let text = word.text.as_str();
    if let Some(long) = text.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v)));
        let known = KNOWN.iter().find(|k| k.long == name).ok_or_else(|| {
            let suggestion = nearest(name, KNOWN.iter().map(|k| k.long)).map(|s| format!("--{s}"));
            let problem = Problem::UnknownOption { suggestion };
            FileError::of_key(word.at, format!("--{name}"), problem)
        })?;
        return Ok((known, value, format!("--{name}")));
    }
    let mut chars = text.chars();
    if chars.next() != Some('-') {
        let why = format!("'{text}' is no option; quote a value that holds blanks");
        return Err(FileError::new(word.at, Problem::BadValue(why)));
    }
    let letter = chars.next();
    let shown = letter.map_or_else(|| "-".to_owned(), |c| format!("-{c}"));
    let known = KNOWN.iter().find(|k| k.short.is_some() && k.short == letter).ok_or_else(|| {
        FileError::of_key(word.at, shown.clone(), Problem::UnknownOption { suggestion: None })
    })?;
    let rest = chars.as_str();
    let rest = rest.strip_prefix('=').unwrap_or(rest);
    Ok((known, Some(rest).filter(|r| !r.is_empty()), shown))
}

/// Everything that a script asks for, in Slurm's terms. The last of two equal options holds.
#[derive(Default)]
pub(super) struct Request {
    name: Option<String>,
    nodes: Option<u32>,
    tasks: Option<u32>,
    tasks_per_node: Option<u32>,
    cpus_per_task: Option<u32>,
    cpus_per_gpu: Option<u32>,
    gpus: Option<(GpuRequest, Place)>,
    gpus_per_node: Option<GpuRequest>,
    gpus_per_task: Option<GpuRequest>,
    mem: Option<Bytes>,
    mem_per_gpu: Option<Bytes>,
    mem_per_cpu: Option<Bytes>,
    time: Option<Span>,
    array: Option<tutti_model::ArraySpec>,
    after: Vec<Dependency>,
    account: Option<String>,
    chdir: Option<String>,
    pub inherit: Option<Inherit>,
    env: Vec<(String, String)>,
    retry: Option<Retry>,
    hold: bool,
    priority: Option<Priority>,
    class: Option<String>,
    labels: BTreeMap<String, String>,
    one_switch: bool,
    exclusive: bool,
    warnings: Vec<String>,
}

impl Request {
    pub fn take(&mut self, c: &Chosen) -> Result<(), FileError> {
        match c.known.does {
            Does::Nothing(why) => {
                self.warn(c, why);
                return Ok(());
            }
            Does::Refused(why) => {
                let problem = Problem::Unsupported { why };
                return Err(FileError::of_key(c.at, c.shown.clone(), problem));
            }
            Does::Something => {}
        }
        match c.known.long {
            "job-name" => self.name = Some(c.name()?),
            "nodes" => self.nodes = Some(least_nodes(c)?),
            "ntasks" => self.tasks = Some(c.number(1)?),
            "ntasks-per-node" => self.tasks_per_node = Some(c.number(1)?),
            "cpus-per-task" => self.cpus_per_task = Some(c.number(1)?),
            "cpus-per-gpu" => self.cpus_per_gpu = Some(c.number(1)?),
            "gres" => self.take_gres(c)?,
            "gpus" => self.gpus = Some((c.parsed()?, c.value_at)),
            "gpus-per-node" => self.gpus_per_node = Some(c.parsed()?),
            "gpus-per-task" => self.gpus_per_task = Some(c.parsed()?),
            "mem" => self.mem = Some(memory(c)?),
            "mem-per-gpu" => self.mem_per_gpu = Some(memory(c)?),
            "mem-per-cpu" => self.mem_per_cpu = Some(memory(c)?),
            "time" => self.time = time(c)?,
            "array" => self.array = Some(c.parsed()?),
            "dependency" => self.after = dependencies(c)?,
            "account" => self.account = Some(c.name()?),
            "chdir" => self.chdir = Some(c.text().to_owned()),
            "export" => self.take_export(c)?,
            "requeue" => self.retry = Some(Retry::default()),
            "no-requeue" => {
                self.retry = Some(Retry { node_failure: 0, preemption: 0, job_failure: 0 });
            }
            "hold" => self.hold = true,
            "nice" => self.take_nice(c)?,
            "priority" => self.priority = Some(c.parsed()?),
            "qos" => match c.text() {
                // Words that every Slurm site has, and that stand for a priority here.
                "low" | "normal" | "high" => self.priority = Some(c.parsed()?),
                class => self.class = Some(class.to_owned()),
            },
            "constraint" => self.labels = features(c)?,
            "switches" => self.take_switches(c)?,
            "exclusive" => self.take_exclusive(c),
            other => unreachable!("--{other} does something, and nobody does it"),
        }
        Ok(())
    }

    fn warn(&mut self, c: &Chosen, why: &str) {
        self.note(c, &format!("is ignored: {why}"));
    }

    /// An option is followed, but not to the letter.
    fn note(&mut self, c: &Chosen, what: &str) {
        let value = c.value.as_ref().map_or_else(String::new, |v| format!(" {v}"));
        self.warnings.push(format!("line {}: {}{value} {what}", c.at.line, c.shown));
    }

    /// `gpu:2`, `gpu:h100:2`, `gpu`; other generic resources do not exist here.
    fn take_gres(&mut self, c: &Chosen) -> Result<(), FileError> {
        for item in c.text().split(',') {
            let rest = item.strip_prefix("gres/").unwrap_or(item);
            let request = match rest.strip_prefix("gpu") {
                Some("") => "1",
                Some(r) if r.starts_with(':') => r[1..].split('(').next().unwrap_or_default(),
                _ => {
                    let why =
                        format!("'{item}' is no GPU request: only gpu[:model][:number] is known");
                    return Err(c.bad(why));
                }
            };
            self.gpus_per_node =
                Some(request.parse().map_err(|e: tutti_model::BadSpec| c.bad(e.to_string()))?);
        }
        Ok(())
    }

    fn take_export(&mut self, c: &Chosen) -> Result<(), FileError> {
        let mut names = Vec::new();
        let mut all = false;
        for item in c.text().split(',').filter(|i| !i.is_empty()) {
            match item.split_once('=') {
                Some((name, value)) => match variable_name_problem(name) {
                    Some(why) => return Err(c.bad(format!("'{item}': {why}"))),
                    None => self.env.push((name.to_owned(), value.to_owned())),
                },
                None if item.eq_ignore_ascii_case("ALL") => all = true,
                None if ["NONE", "NIL"].iter().any(|w| item.eq_ignore_ascii_case(w)) => {}
                None => names.push(item.to_owned()),
            }
        }
        self.inherit = Some(match (all, names.is_empty()) {
            (true, _) => Inherit::All,
            (false, true) => Inherit::Nothing,
            (false, false) => Inherit::Only(names),
        });
        Ok(())
    }

    /// `1` is one leaf switch, which is a rack here; more of them are no limit.
    fn take_switches(&mut self, c: &Chosen) -> Result<(), FileError> {
        let (number, patience) = c.text().split_once('@').unwrap_or((c.text(), ""));
        let number: u32 = number
            .parse()
            .map_err(|_| c.bad(format!("'{}' is no number of switches", c.text())))?;
        self.one_switch = number == 1;
        if number != 1 {
            self.warn(c, "only one switch (a rack) can be asked for");
        } else if !patience.is_empty() {
            self.note(c, "waits for room in one rack as long as it takes");
        }
        Ok(())
    }

    fn take_exclusive(&mut self, c: &Chosen) {
        self.exclusive = true;
        if c.value.is_some() {
            self.note(c, "keeps everybody else off its nodes");
        }
    }

    /// Nicer means later.
    fn take_nice(&mut self, c: &Chosen) -> Result<(), FileError> {
        let nice: i32 = match &c.value {
            None => 100,
            Some(_) => c
                .text()
                .parse()
                .map_err(|_| c.bad(format!("'{}' is not a whole number", c.text())))?,
        };
        self.priority = Some(Priority(nice.saturating_neg()));
        Ok(())
    }

    /// Slurm's terms into ours.
    pub fn fill(mut self, spec: &mut JobSpec, warnings: &mut Vec<String>) -> Result<(), FileError> {
        let tasks = self.tasks.unwrap_or(1);
        let nodes = self.nodes.or_else(|| Some(tasks.div_ceil(self.tasks_per_node?)));
        let tasks_per_node =
            self.tasks_per_node.unwrap_or_else(|| tasks.div_ceil(nodes.unwrap_or(1)));
        if nodes.unwrap_or(1) > 1 || tasks > 1 || tasks_per_node > 1 {
            self.warnings.push(
                "there is no srun here: every node runs the whole script once, as a rank of its \
                 own (RANK, WORLD_SIZE and MASTER_ADDR are set)"
                    .to_owned(),
            );
        }
        if self.cpus_per_task.is_some() || tasks_per_node > 1 {
            spec.cpus_per_node =
                Some(self.cpus_per_task.unwrap_or(1).saturating_mul(tasks_per_node));
        }
        spec.nodes = nodes;
        spec.cpus_per_gpu = self.cpus_per_gpu;
        self.fill_gpus(spec, tasks_per_node)?;
        self.fill_memory(spec);
        if let Some(name) = self.name.take() {
            spec.name = Some(name);
        }
        spec.time = self.time;
        spec.array = self.array.take();
        spec.after = std::mem::take(&mut self.after);
        spec.team = self.account.take();
        spec.workdir = self.chdir.take();
        spec.env.extend(self.env.drain(..));
        spec.retry = self.retry.unwrap_or_default();
        spec.hold = self.hold;
        spec.priority = self.priority.unwrap_or_default();
        spec.class = self.class.take();
        spec.labels = std::mem::take(&mut self.labels);
        spec.topology = self.one_switch.then_some(Topology::Rack);
        spec.exclusive = self.exclusive;
        warnings.append(&mut self.warnings);
        Ok(())
    }

    fn fill_gpus(&mut self, spec: &mut JobSpec, tasks_per_node: u32) -> Result<(), FileError> {
        let none = |g: &GpuRequest| g.count == 0;
        if let Some(per_task) = self.gpus_per_task.take().filter(|g| !none(g)) {
            let count = per_task.count.saturating_mul(tasks_per_node);
            spec.gpus_per_node = Some(GpuRequest { count, ..per_task });
        }
        if let Some(per_node) = self.gpus_per_node.take().filter(|g| !none(g)) {
            spec.gpus_per_node = Some(per_node);
        }
        let Some((total, at)) = self.gpus.take().filter(|(g, _)| !none(g)) else { return Ok(()) };
        if spec.gpus_per_node.is_some() {
            return Ok(()); // says how the total is spread, and Slurm wants both to agree
        }
        match (spec.nodes, &total.model) {
            (None, None) => spec.gpus = Some(total.count),
            (Some(nodes), _) if total.count.is_multiple_of(nodes) => {
                let count = total.count / nodes;
                spec.gpus_per_node = Some(GpuRequest { count, ..total });
            }
            (Some(nodes), _) => {
                let (gpus, nodes) = (count(total.count.into(), "GPU"), count(nodes.into(), "node"));
                let why = format!("{gpus} can't be spread evenly over {nodes}");
                return Err(FileError::of_key(at, "--gpus", Problem::BadValue(why)));
            }
            (None, Some(model)) => {
                self.warnings.push(format!(
                    "--gpus names the model {model} and no number of nodes: all {} are taken from \
                     one node (use --nodes and --gpus-per-node for several)",
                    total.count
                ));
                spec.nodes = Some(1);
                spec.gpus_per_node = Some(total);
            }
        }
        Ok(())
    }

    fn fill_memory(&self, spec: &mut JobSpec) {
        let some = |b: Option<Bytes>| b.filter(|b| b.0 > 0);
        spec.mem_per_gpu = some(self.mem_per_gpu);
        spec.mem_per_node = some(self.mem).or_else(|| {
            let cpus = u64::from(spec.cpus_per_node.unwrap_or(1));
            some(self.mem_per_cpu).map(|b| Bytes(b.0.saturating_mul(cpus)))
        });
    }
}

/// `a&b`: nodes with the labels `a=true` and `b=true`. Slurm's features have no value, our labels
/// do; `rack=r1` is taken as such a label. Anything more can't be followed, and to ignore it would
/// run the job elsewhere.
fn features(c: &Chosen) -> Result<BTreeMap<String, String>, FileError> {
    let text = c.text().trim_matches('"');
    if text.is_empty() || text.contains(|ch: char| "|[]()*!".contains(ch)) {
        return Err(c.bad(format!("'{text}' is not understood: only names joined by '&' are")));
    }
    let label = |item: &str| {
        let (key, value) = item.split_once('=').unwrap_or((item, "true"));
        (!key.trim().is_empty()).then(|| (key.trim().to_owned(), value.trim().to_owned()))
    };
    text.split(['&', ','])
        .map(|item| label(item).ok_or_else(|| c.bad(format!("'{text}' has an empty name"))))
        .collect()
}

/// `4`, or the smaller end of `2-4`.
fn least_nodes(c: &Chosen) -> Result<u32, FileError> {
    let text = c.text();
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    match (least.parse::<u32>(), most.parse::<u32>()) {
        (Ok(a), Ok(b)) if 0 < a && a <= b => Ok(a),
        _ => Err(c.bad(format!("'{text}' is no number of nodes: write 4 or 2-4"))),
    }
}

/// Slurm counts memory in mebibytes unless a unit is given.
fn memory(c: &Chosen) -> Result<Bytes, FileError> {
    let text = c.text();
    let unit = if text.ends_with(|ch: char| ch.is_ascii_digit()) { "M" } else { "" };
    format!("{text}{unit}")
        .parse()
        .map_err(|_| c.bad(format!("'{text}' is not a size: write 4000 (mebibytes), 512M or 64G")))
}

/// Minutes, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`, or no limit.
fn time(c: &Chosen) -> Result<Option<Span>, FileError> {
    let text = c.text();
    if ["unlimited", "infinite", "0", "-1"].contains(&text.to_ascii_lowercase().as_str()) {
        return Ok(None);
    }
    let full = if text.contains('-') && !text.contains(':') {
        format!("{text}:00")
    } else {
        text.to_owned()
    };
    full.parse().map(Some).map_err(|_| {
        c.bad(format!(
            "'{text}' is not a length of time: write 90 (minutes), 02:30:00 or 1-12:00:00"
        ))
    })
}

/// `afterok:12:13,afterany:14`.
fn dependencies(c: &Chosen) -> Result<Vec<Dependency>, FileError> {
    let mut after = Vec::new();
    if c.text().contains('?') {
        return Err(c.bad("'?' (any one of them) is not supported: separate with ','".to_owned()));
    }
    for item in c.text().split(',') {
        let (kind, jobs) = item.split_once(':').unwrap_or((item, ""));
        let on = match kind {
            "afterok" => DependOn::Ok,
            "afternotok" => DependOn::Failed,
            "afterany" => DependOn::Any,
            _ => {
                let why = format!("'{kind}' is not supported: use afterok, afternotok or afterany");
                return Err(c.bad(why));
            }
        };
        for job in jobs.split(':') {
            let job: JobId = job.parse().map_err(|e: tutti_model::BadId| c.bad(e.to_string()))?;
            after.push(Dependency { job, on });
        }
    }
    Ok(after)
}
