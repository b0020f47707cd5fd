//! Where the GPUs of the cluster stand on the screen: nodes side by side, below the name of their rack.

use tutti_model::Place;
use tutti_wire::api::NodeRow;

use super::app::App;
use super::text::width;
use crate::show::nodes::place;

/// Bars and counts.
pub const PANEL: usize = 5;
/// More GPUs of a node than that are counted, not drawn.
pub const GPUS_MAX: usize = 16;
const NAME_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellLine {
    Head(String),
    /// Places in the list of nodes.
    Nodes(Vec<usize>),
}

/// How a node looks: its name, a mark, its GPUs, a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub name: usize,
    pub gpus: usize,
    pub columns: usize,
}

impl Shape {
    pub fn of<'a>(nodes: impl Iterator<Item = &'a NodeRow> + Clone, wide: usize) -> Shape {
        let name = nodes.clone().map(|n| width(&n.name)).max().unwrap_or(0).clamp(4, NAME_MAX);
        let gpus = nodes.map(|n| n.facts.gpus as usize).max().unwrap_or(0).clamp(1, GPUS_MAX);
        let shape = Shape { name, gpus, columns: 1 };
        Shape { columns: (wide.saturating_sub(1) / shape.wide()).max(1), ..shape }
    }

    /// With a mark, a number of up to five characters, and what keeps them apart.
    pub fn wide(self) -> usize {
        self.name + 3 + self.gpus + 6 + 3
    }
}

pub fn shape(app: &App) -> Shape {
    let rows: Vec<&NodeRow> = app.node_rows().collect();
    Shape::of(rows.iter().copied(), app.size.width.into())
}

pub fn lines(app: &App) -> Vec<CellLine> {
    let mut nodes: Vec<(String, usize)> = app
        .nodes
        .order
        .iter()
        .filter_map(|i| Some((place(&app.data.nodes.get(*i)?.place), *i)))
        .collect();
    let placed = app.node_rows().any(|node| node.place != Place::default());
    if placed {
        nodes.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    let columns = shape(app).columns;
    let mut lines = Vec::new();
    for group in nodes.chunk_by(|(a, _), (b, _)| !placed || a == b) {
        if placed {
            lines.push(CellLine::Head(group[0].0.clone()));
        }
        let rows = group.chunks(columns);
        lines.extend(rows.map(|row| CellLine::Nodes(row.iter().map(|(_, i)| *i).collect())));
    }
    lines
}

/// How many findings are told above the cells.
pub fn findings_shown(app: &App, all: usize) -> usize {
    let room = (app.body_height() / 7).max(2);
    if all <= room { all } else { room }
}

/// Rows for cells: below the panel, the findings and a head.
pub fn height(app: &App) -> usize {
    let told = findings_shown(app, app.findings().len());
    app.body_height().saturating_sub(PANEL + told + 1)
}

pub fn offset_max(app: &App) -> usize {
    lines(app).len().saturating_sub(height(app))
}

/// The nodes in sight, by name.
pub fn shown(app: &App) -> Vec<String> {
    let lines = lines(app);
    let mut names: Vec<String> = lines
        .iter()
        .skip(app.cells_offset)
        .take(height(app))
        .flat_map(|line| match line {
            CellLine::Head(_) => [].iter(),
            CellLine::Nodes(nodes) => nodes.iter(),
        })
        .filter_map(|i| app.data.nodes.get(*i))
        .map(|node| node.name.clone())
        .collect();
    names.sort_unstable();
    names
}
