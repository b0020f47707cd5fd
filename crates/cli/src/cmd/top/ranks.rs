//! The ranks of a job: what their GPUs do, how far they are, and which one holds the others up.

use tutti_model::Span;
use tutti_wire::api::{GpuCell, JobDetail, NodeLoad, PartRow, ProgressDetail};

/// A rank whose GPUs do less than this part of the usual is held to be idle.
const IDLE: f32 = 0.7;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankLine {
    pub rank: u32,
    pub node: String,
    pub gpus: Vec<u16>,
    /// Percent; of each of its GPUs, where they tell.
    pub each: Vec<Option<u8>>,
    pub busy: Option<u8>,
    pub mem: Option<u8>,
    /// Watts.
    pub power: Option<u32>,
    pub step: Option<u64>,
    pub pace: Option<Span>,
    pub age: Option<Span>,
    /// It has ended, so.
    pub exit: Option<String>,
    pub mark: Option<&'static str>,
}

pub fn ranks(job: &JobDetail, progress: &ProgressDetail, loads: &[NodeLoad]) -> Vec<RankLine> {
    let mut lines: Vec<RankLine> = Vec::new();
    for part in &job.parts {
        let load = loads.iter().find(|load| load.node == part.node);
        for i in 0..part.ranks {
            lines.push(line(part, i, load));
        }
    }
    for told in &progress.ranks {
        let line = match lines.iter_mut().find(|line| line.rank == told.rank) {
            Some(line) => line,
            None => {
                // Its attempt is over; what it said last is still known.
                let node = told.node.clone().unwrap_or_default();
                lines.push(RankLine { rank: told.rank, node, ..RankLine::default() });
                lines.last_mut().expect("it was just put there")
            }
        };
        (line.step, line.pace, line.age) = (Some(told.step), told.pace, told.age);
    }
    lines.sort_by_key(|line| line.rank);
    mark(&mut lines, progress);
    lines
}

fn line(part: &PartRow, i: u32, load: Option<&NodeLoad>) -> RankLine {
    let gpus = own(&part.gpus, i, part.ranks);
    let cells: Vec<&GpuCell> =
        load.iter().flat_map(|load| &load.gpus).filter(|cell| gpus.contains(&cell.gpu.0)).collect();
    let mean = |of: fn(&GpuCell) -> Option<u8>| {
        let told: Vec<u32> = cells.iter().filter_map(|cell| of(cell)).map(u32::from).collect();
        (!told.is_empty()).then(|| (told.iter().sum::<u32>() / told.len() as u32) as u8)
    };
    let watts: Vec<u32> = cells.iter().filter_map(|cell| cell.power).map(u32::from).collect();
    let rank = part.first_rank + i;
    let exit = part.exits.iter().find(|exit| exit.rank.0 == rank);
    RankLine {
        rank,
        node: part.node.clone(),
        each: cells.iter().map(|cell| cell.sm.or(cell.util)).collect(),
        busy: mean(|cell| cell.sm.or(cell.util)),
        mem: mean(|cell| cell.mem),
        power: (!watts.is_empty()).then(|| watts.iter().sum()),
        exit: exit.map(|exit| crate::show::job::exit_words(&exit.status)),
        gpus,
        ..RankLine::default()
    }
}

/// By custom the i-th rank of a part takes the i-th GPU, or the i-th of equal shares; where that does
/// not come out even, all of them are everybody's.
fn own(gpus: &[u16], i: u32, ranks: u32) -> Vec<u16> {
    let (all, ranks, i) = (gpus.len(), ranks as usize, i as usize);
    if ranks > 0 && all >= ranks && all.is_multiple_of(ranks) {
        let each = all / ranks;
        gpus[i * each..(i + 1) * each].to_vec()
    } else {
        gpus.to_vec()
    }
}

/// One at most, and only among several.
fn mark(lines: &mut [RankLine], progress: &ProgressDetail) {
    if lines.len() < 2 {
        return;
    }
    let told = progress.progress.as_ref();
    let (rank, words) = match told.map(|p| (p.behind, p.slowest)) {
        Some((Some(behind), _)) => (Some(behind), "◀ behind"),
        Some((None, Some(slowest))) => (Some(slowest), "◀ slowest"),
        _ => (idle(lines), "◀ least active"),
    };
    if let Some(line) = lines.iter_mut().find(|line| Some(line.rank) == rank) {
        line.mark = Some(words);
    }
}

/// Whose GPUs do far less than the others'.
fn idle(lines: &[RankLine]) -> Option<u32> {
    let mut busy: Vec<u8> = lines.iter().filter_map(|line| line.busy).collect();
    busy.sort_unstable();
    let usual = f32::from(*busy.get(busy.len() / 2)?);
    let least = lines.iter().filter(|line| line.busy.is_some()).min_by_key(|line| line.busy)?;
    (f32::from(least.busy?) < IDLE * usual).then_some(least.rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_their_share_of_the_gpus() {
        assert_eq!(own(&[4, 5, 6, 7], 1, 4), [5]);
        assert_eq!(own(&[4, 5, 6, 7], 1, 2), [6, 7]);
        assert_eq!(own(&[4, 5, 6], 1, 2), [4, 5, 6]);
        assert_eq!(own(&[4], 1, 2), [4]);
        assert!(own(&[], 0, 1).is_empty());
    }

    #[test]
    fn where_nobody_tells_steps_the_least_active_is_marked() {
        let line = |rank, busy| RankLine { rank, busy, ..RankLine::default() };
        let none = ProgressDetail {
            id: "7".parse().unwrap(),
            progress: None,
            ranks: Vec::new(),
            history: Vec::new(),
        };
        let marked = |lines: &[RankLine]| {
            let mut lines = lines.to_vec();
            mark(&mut lines, &none);
            lines.iter().find(|line| line.mark.is_some()).map(|line| line.rank)
        };
        let even = [line(0, Some(90)), line(1, Some(85)), line(2, Some(95))];
        assert_eq!(marked(&even), None);
        let one = [line(0, Some(90)), line(1, Some(12)), line(2, None)];
        assert_eq!(marked(&one), Some(1));
        assert_eq!(marked(&one[1..2]), None, "alone it is no slower than others");
    }
}
