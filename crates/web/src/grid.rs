//! Every GPU of the cluster in a few bytes each, and what of it has changed.
//!
//! ```text
//!  layout: site ─ rack ─ node ─ island ─ GPU   as JSON, sent when nodes come or go
//!  cells:  9 bytes for each GPU, in that order  as base64, sent once
//!  paint:  4 bytes of index and the 9, of each GPU that looks different now
//! ```

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::live::Event;

pub const CELL_BYTES: usize = 9;
/// Of a value that is not known.
pub const UNKNOWN: u8 = 255;

/// Who has a GPU, or why nobody may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Holding {
    #[default]
    Free = 0,
    Held = 1,
    /// Several have parts of it, or one has less than all.
    Shared = 2,
    /// Something is wrong with it.
    Fenced = 3,
    /// Its node takes no work.
    Closed = 4,
    /// Its node is away or lost.
    Gone = 5,
}

/// How a GPU looks of which this holds, in every colouring: by its form, so that nobody needs colours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sign {
    /// In the legend, and in the details of a cell.
    pub name: &'static str,
    pub words: &'static str,
    /// Only its edge is drawn.
    pub hollow: bool,
    /// One of its corners is missing.
    pub cut: bool,
    /// Strokes over it, each from x and y to x and y, in parts of its size.
    pub strokes: &'static [[f32; 4]],
}

const PLAIN: Sign = Sign { name: "", words: "", hollow: false, cut: false, strokes: &[] };

/// By the number of each [`Holding`]; the page brings them to the script that draws.
pub const SIGNS: [Sign; 6] = [
    Sign { name: "free", words: "free", hollow: true, ..PLAIN },
    Sign { name: "held", words: "held", ..PLAIN },
    Sign { name: "shared", words: "shared", cut: true, ..PLAIN },
    Sign {
        name: "fenced",
        words: "fenced",
        strokes: &[[0.2, 0.2, 0.8, 0.8], [0.8, 0.2, 0.2, 0.8]],
        ..PLAIN
    },
    Sign {
        name: "drained",
        words: "node takes no work",
        strokes: &[[0.1, 0.5, 0.5, 0.1], [0.1, 0.9, 0.9, 0.1], [0.5, 0.9, 0.9, 0.5]],
        ..PLAIN
    },
    Sign {
        name: "away",
        words: "node away or lost",
        hollow: true,
        strokes: &[[0.15, 0.5, 0.85, 0.5]],
        ..PLAIN
    },
];

/// What is known of one GPU, in steps that the eye can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub holding: Holding,
    /// The job that has it; 0 if nobody. Numbers beyond 32 bits are cut.
    pub job: u32,
    /// Shares of the time and of the power limit, in steps of 5 %: 0 to 20.
    pub activity: u8,
    pub power: u8,
    /// Degrees, in steps of 2.
    pub temp: u8,
    /// 0 is well; else the hardest [`tutti_model::HealthAction`] that stands, from 1.
    pub health: u8,
}

impl Default for Cell {
    fn default() -> Cell {
        Cell {
            holding: Holding::Free,
            job: 0,
            activity: UNKNOWN,
            power: UNKNOWN,
            temp: UNKNOWN,
            health: 0,
        }
    }
}

impl Cell {
    /// A share of 0 to 1 in steps of 5 %.
    pub fn share(value: Option<f64>) -> u8 {
        value.map_or(UNKNOWN, |share| (share.clamp(0.0, 1.0) * 20.0).round() as u8)
    }

    pub fn degrees(value: Option<i16>) -> u8 {
        value.map_or(UNKNOWN, |degrees| (degrees.clamp(0, 250) / 2 * 2) as u8)
    }

    fn put(&self, into: &mut Vec<u8>) {
        into.push(self.holding as u8);
        into.extend(self.job.to_le_bytes());
        into.extend([self.activity, self.power, self.temp, self.health]);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SiteLayout {
    pub name: String,
    pub racks: Vec<RackLayout>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RackLayout {
    pub name: String,
    pub nodes: Vec<NodeLayout>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeLayout {
    pub name: String,
    pub model: String,
    /// GPUs by NVLink island: how many each has. One number where nothing is known of links.
    pub islands: Vec<u16>,
    /// The index of each GPU on its node, where it is not 0, 1, 2 and on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u16>,
}

/// What the details of a cell say of its job: name, user, team.
pub type JobWords = (String, String, String);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    pub layout: Vec<SiteLayout>,
    pub jobs: BTreeMap<u32, JobWords>,
    pub cells: Vec<Cell>,
}

#[derive(Serialize)]
struct Whole<'a> {
    layout: &'a [SiteLayout],
    jobs: &'a BTreeMap<u32, JobWords>,
    cells: String,
}

#[derive(Serialize)]
struct Paint<'a> {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    jobs: BTreeMap<&'a u32, &'a JobWords>,
    cells: String,
}

impl Grid {
    pub fn changes(&self, before: Option<&Grid>) -> Option<Event> {
        match before {
            Some(before) if before.layout == self.layout => self.paint(before),
            _ => {
                let cells = STANDARD.encode(self.bytes());
                let whole = Whole { layout: &self.layout, jobs: &self.jobs, cells };
                Some(Event::json("grid", &whole))
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.cells.len() * CELL_BYTES);
        self.cells.iter().for_each(|cell| cell.put(&mut bytes));
        bytes
    }

    fn paint(&self, before: &Grid) -> Option<Event> {
        let mut bytes = Vec::new();
        for (index, (cell, was)) in self.cells.iter().zip(&before.cells).enumerate() {
            if cell != was {
                bytes.extend((index as u32).to_le_bytes());
                cell.put(&mut bytes);
            }
        }
        let new = |(id, words): &(&u32, &JobWords)| before.jobs.get(id) != Some(*words);
        let jobs: BTreeMap<_, _> = self.jobs.iter().filter(new).collect();
        if bytes.is_empty() && jobs.is_empty() {
            return None;
        }
        Some(Event::json("paint", &Paint { jobs, cells: STANDARD.encode(bytes) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(cells: usize) -> Grid {
        let node = |n: usize| NodeLayout {
            name: format!("n{n}"),
            model: "h100".into(),
            islands: vec![8],
            gpus: Vec::new(),
        };
        let nodes = (0..cells / 8).map(node).collect();
        let rack = RackLayout { name: "r1".into(), nodes };
        Grid {
            layout: vec![SiteLayout { name: String::new(), racks: vec![rack] }],
            jobs: BTreeMap::new(),
            cells: vec![Cell::default(); cells],
        }
    }

    fn cells(event: &Event) -> Vec<u8> {
        let json: serde_json::Value = serde_json::from_str(&event.data).unwrap();
        STANDARD.decode(json["cells"].as_str().unwrap()).unwrap()
    }

    #[test]
    fn the_first_time_all_is_sent_and_then_what_changed() {
        let before = grid(16);
        let first = before.changes(None).unwrap();
        assert_eq!((first.name, cells(&first).len()), ("grid", 16 * CELL_BYTES));
        assert_eq!(before.changes(Some(&before)), None);
        let mut after = before.clone();
        after.cells[9] = Cell { holding: Holding::Held, job: 770, activity: 17, ..Cell::default() };
        after.jobs.insert(770, ("train".into(), "ada".into(), "vision".into()));
        let paint = after.changes(Some(&before)).unwrap();
        assert_eq!(paint.name, "paint");
        assert_eq!(cells(&paint), [9, 0, 0, 0, 1, 2, 3, 0, 0, 17, 255, 255, 0]);
        assert!(paint.data.contains("\"770\":[\"train\",\"ada\",\"vision\"]"), "{}", paint.data);
    }

    #[test]
    fn a_node_more_is_a_new_picture() {
        assert_eq!(grid(24).changes(Some(&grid(16))).unwrap().name, "grid");
    }

    #[test]
    fn values_are_told_in_steps() {
        assert_eq!(
            [Cell::share(None), Cell::share(Some(0.512)), Cell::share(Some(7.0))],
            [255, 10, 20]
        );
        assert_eq!(
            [Cell::degrees(Some(65)), Cell::degrees(Some(-4)), Cell::degrees(None)],
            [64, 0, 255]
        );
    }

    #[test]
    fn no_two_signs_look_the_same() {
        for (i, a) in SIGNS.iter().enumerate() {
            for b in &SIGNS[..i] {
                let forms = [a, b].map(|sign| (sign.hollow, sign.cut, sign.strokes));
                assert_ne!(forms[0], forms[1], "{} and {}", a.name, b.name);
                assert!(a.name != b.name && a.words != b.words);
            }
        }
        let out = [Holding::Fenced, Holding::Closed, Holding::Gone].map(|is| SIGNS[is as usize]);
        assert_eq!(out.map(|sign| sign.name), ["fenced", "drained", "away"]);
        assert!(out.iter().all(|sign| !sign.strokes.is_empty()), "colours hide no stroke");
        let inside = |stroke: &[f32; 4]| stroke.iter().all(|part| (0.0..=1.0).contains(part));
        assert!(SIGNS.iter().flat_map(|sign| sign.strokes).all(inside));
    }

    #[test]
    fn ten_thousand_gpus_are_small() {
        let size = grid(10_000).changes(None).unwrap().data.len();
        assert!(size < 200_000, "{size} bytes, as the guide says");
    }
}
