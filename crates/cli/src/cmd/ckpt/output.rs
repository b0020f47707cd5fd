//! What `tutti ckpt` prints. Pure.

use serde::Serialize;
use tutti_checkpoint::{Kind, Listed, Manifest, Verified};
use tutti_model::Time;

use crate::fail::chain;
use crate::show::table::{Grid, plain, terminal_width};
use crate::show::{count, time};
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
}

impl Row {
    pub fn of(listed: &Listed) -> Row {
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
        }
    }
}

pub fn table(listed: &[Listed], style: Style) -> String {
    if listed.is_empty() {
        return "no checkpoints".to_owned();
    }
    let mut grid = Grid::new(&[">STEP", "SAVED", ">SIZE", ">FILES", ">RANKS", "NOTE"], style);
    for row in listed.iter().map(Row::of) {
        let note = match (&row.problem, &row.pinned) {
            (Some(problem), _) => (problem.clone(), Ink::Red),
            (None, Some(why)) => (format!("pinned: {why}"), Ink::Yellow),
            (None, None) if row.kind == Some(Kind::Foreign) => plain("registered"),
            (None, None) => plain(""),
        };
        grid.row([
            plain(row.step.to_string()),
            plain(row.created_at.map_or_else(String::new, time::clock)),
            plain(size(row.bytes)),
            plain(row.files.to_string()),
            plain(row.ranks.to_string()),
            note,
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
        lines.push(format!("pinned    {why}"));
    }
    if !manifest.meta.is_null() {
        lines.push(format!("meta      {}", manifest.meta));
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

/// What became of verifying one step.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Checked {
    Read(Verified),
    Unreadable { step: u64, why: String },
}

impl Checked {
    pub fn is_good(&self) -> bool {
        match self {
            Checked::Read(found) => found.loads && found.bad.iter().all(|b| b.mended),
            Checked::Unreadable { .. } => false,
        }
    }
}

pub fn checked(all: &[Checked], style: Style) -> String {
    let mut lines = Vec::new();
    for one in all {
        match one {
            Checked::Unreadable { step, why } => {
                lines.push(format!("step {step}  {}  {why}", style.paint(Ink::Red, "lost")));
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
                    lines.push(format!("  {} in {}: {}{mended}", bad.path, bad.place, bad.why));
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
