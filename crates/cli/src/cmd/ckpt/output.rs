//! What `tutti ckpt` prints. Pure.

use serde::Serialize;
use tutti_checkpoint::{Kind, Listed, Manifest, Verified};
use tutti_model::Time;
use tutti_wire::api::JobDetail;

use super::known::{Known, Standing};
use crate::fail::chain;
use crate::show::table::{Grid, plain, terminal_width};
use crate::show::{count, harmless, time};
use crate::style::{Ink, Style};

/// A line of `ls`.
#[derive(Serialize)]
pub struct Row {
    step: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Time>,
    bytes: u64,
    files: usize,
    tensors: usize,
    ranks: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pinned: Option<String>,
    /// Why its manifest can't be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Without a manifest: what its job has said, and whether it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    standing: Option<&'static str>,
    #[serde(skip)]
    known: Option<Known>,
}

/// All of them, oldest first.
pub fn rows(listed: &[Listed], known: &[Known]) -> Vec<Row> {
    let mut rows: Vec<Row> = listed.iter().map(Row::of).collect();
    rows.extend(known.iter().map(Row::known));
    rows.sort_by_key(|row| row.step);
    rows
}

impl Row {
    fn of(listed: &Listed) -> Row {
        let manifest = listed.manifest.as_ref().ok();
        Row {
            step: listed.step,
            kind: manifest.map(|m| m.kind),
            created_at: manifest.map(|m| Time(m.created_ms)),
            bytes: manifest.map_or(0, Manifest::bytes),
            files: manifest.map_or(0, |m| m.files.len()),
            tensors: manifest.map_or(0, |m| m.tensors.len()),
            ranks: manifest.map_or(0, |m| m.world),
            pinned: manifest.and_then(|m| m.pinned.clone()),
            problem: listed.manifest.as_ref().err().map(|e| chain(e)),
            path: None,
            node: None,
            standing: None,
            known: None,
        }
    }

    pub fn known(known: &Known) -> Row {
        let (files, bytes) = match known.standing {
            Standing::NotHashed { files, bytes } => (files, bytes),
            _ => (0, 0),
        };
        Row {
            step: known.step,
            kind: None,
            created_at: known.at,
            bytes,
            files,
            tensors: 0,
            ranks: 0,
            pinned: None,
            problem: None,
            path: known.path.clone(),
            node: known.node.clone(),
            standing: Some(known.standing.word()),
            known: Some(known.clone()),
        }
    }

    fn note(&self) -> (String, Ink) {
        match (&self.problem, &self.pinned, &self.known) {
            (Some(problem), _, _) => (problem.clone(), Ink::Red),
            (_, Some(why), _) => (format!("pinned: {why}"), Ink::Yellow),
            (_, _, Some(known)) => {
                let ink = if known.standing == Standing::Gone { Ink::Red } else { Ink::Plain };
                (whereabouts(known), ink)
            }
            _ if self.kind == Some(Kind::Foreign) => plain("registered"),
            _ => plain(""),
        }
    }
}

/// Where something is that no manifest describes, as far as can be told from here.
pub fn whereabouts(known: &Known) -> String {
    let Some(path) = &known.path else { return "reported, but not where it is".to_owned() };
    // The job's own words, whoever it is.
    let path = harmless(path);
    let from = known.node.as_ref().map_or_else(String::new, |n| format!(" by {}", harmless(n)));
    match known.standing {
        Standing::NotHashed { .. } => format!("reported{from}, not hashed: {path}"),
        Standing::Gone => format!("reported{from}, gone: {path}"),
        Standing::NotSeen => format!("reported{from}, not seen from here: {path}"),
    }
}

pub fn table(rows: &[Row], style: Style) -> String {
    if rows.is_empty() {
        return "no checkpoints".to_owned();
    }
    let mut grid = Grid::new(&[">STEP", "SAVED", ">SIZE", ">FILES", ">RANKS", "NOTE"], style);
    for row in rows {
        let unseen =
            row.known.as_ref().is_some_and(|k| !matches!(k.standing, Standing::NotHashed { .. }));
        let unless =
            |unknown: bool, text: String| plain(if unknown { "-".to_owned() } else { text });
        grid.row([
            plain(row.step.to_string()),
            plain(row.created_at.map_or_else(String::new, time::clock)),
            unless(unseen, size(row.bytes)),
            unless(unseen, row.files.to_string()),
            unless(row.ranks == 0, row.ranks.to_string()),
            row.note(),
        ]);
    }
    grid.render(terminal_width())
}

pub fn detail(manifest: &Manifest, tensors: bool, style: Style) -> String {
    let mut lines = vec![
        format!("step      {}", manifest.step),
        format!("saved     {}", time::clock(Time(manifest.created_ms))),
        format!("by        {}, {}", count(u64::from(manifest.world), "rank"), manifest.attempt),
        format!(
            "size      {} in {}, {}",
            size(manifest.bytes()),
            count(manifest.files.len() as u64, "file"),
            count(manifest.tensors.len() as u64, "tensor"),
        ),
    ];
    if let Some(why) = &manifest.pinned {
        lines.push(format!("pinned    {}", harmless(why)));
    }
    if !manifest.meta.is_null() {
        lines.push(format!("meta      {}", harmless(&manifest.meta.to_string())));
    }
    lines.push(String::new());
    let mut grid = Grid::new(&["FILE", ">SIZE", "BLAKE3", "COPIES"], style);
    for file in &manifest.files {
        grid.row([
            plain(&file.path),
            plain(size(file.bytes)),
            plain(&file.hash.root.to_hex()[..16]),
            plain(file.copies.join(" ")),
        ]);
    }
    lines.push(grid.render(terminal_width()));
    if tensors {
        lines.push(String::new());
        let mut grid = Grid::new(&["TENSOR", "TYPE", ">PIECES", "SHAPE"], style);
        for tensor in &manifest.tensors {
            grid.row([
                plain(&tensor.name),
                plain(tensor.dtype.name()),
                plain(tensor.pieces.len().to_string()),
                plain(format!("{:?}", tensor.shape)),
            ]);
        }
        lines.push(grid.render(terminal_width()));
    }
    lines.join("\n")
}

/// What is known of one without a manifest.
pub fn known(known: &Known, job: Option<&JobDetail>) -> String {
    let mut lines = vec![format!("step      {}", known.step)];
    lines.extend(known.at.map(|at| format!("saved     {}", time::clock(at))));
    lines.push(format!("state     {}", whereabouts(known)));
    if let Standing::NotHashed { files, bytes } = known.standing {
        lines.push(format!("size      {} in {}", size(bytes), count(files as u64, "file")));
        if let Some(job) = job {
            let (id, step) = (job.row.id, known.step);
            lines
                .push(format!("\n`tutti ckpt verify {id} {step}` reads it and records its hashes"));
        }
    }
    lines.join("\n")
}

/// What became of verifying one step.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Checked {
    Read(Verified),
    Unreadable {
        step: u64,
        why: String,
    },
    /// It was read for the first time: `recorded` is what was hashed.
    Recorded {
        step: u64,
        recorded: String,
        files: usize,
        bytes: u64,
    },
}

impl Checked {
    pub fn is_good(&self) -> bool {
        match self {
            Checked::Read(found) => found.loads && found.bad.iter().all(|b| b.mended),
            Checked::Recorded { .. } => true,
            Checked::Unreadable { .. } => false,
        }
    }
}

pub fn checked(all: &[Checked], style: Style) -> String {
    let mut lines = Vec::new();
    for one in all {
        match one {
            Checked::Unreadable { step, why } => {
                let lost = style.paint(Ink::Red, "lost");
                lines.push(format!("step {step}  {lost}  {}", harmless(why)));
            }
            Checked::Recorded { step, recorded, files, bytes } => {
                let files = count(*files as u64, "file");
                lines.push(format!(
                    "step {step}  {}  {files}, {} in {}",
                    style.paint(Ink::Green, "recorded"),
                    size(*bytes),
                    harmless(recorded)
                ));
            }
            Checked::Read(found) => {
                let word = match (found.loads, found.bad.is_empty()) {
                    (true, true) => style.paint(Ink::Green, "good"),
                    (true, false) => style.paint(Ink::Yellow, "loads"),
                    (false, _) => style.paint(Ink::Red, "lost"),
                };
                let files = count(found.files as u64, "file");
                let read = size(found.bytes);
                lines.push(format!("step {}  {word}  {files}, {read} read", found.step));
                for bad in &found.bad {
                    let mended = if bad.mended { " (mended)" } else { "" };
                    let told = format!("{} in {}: {}", bad.path, bad.place, bad.why);
                    lines.push(format!("  {}{mended}", harmless(&told)));
                }
            }
        }
    }
    if lines.is_empty() { "no checkpoints".to_owned() } else { lines.join("\n") }
}

/// `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
