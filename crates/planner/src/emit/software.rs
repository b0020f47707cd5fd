//! A layout under the software of the program that it is written for: plans are made for Megatron-Core's.

use super::{CanNot, Emit, job};
use crate::search::best;
use crate::words::{gb, seconds};
use crate::{
    Estimate, Goal, Layout, Pins, Question, Recompute, Setup, Sharding, Stack, estimate, memory,
    step_time, usable_gb,
};

/// What a program is to the cost model.
pub(super) struct Software {
    pub program: &'static str,
    pub stack: Stack,
    /// What the program can't do, or does in one way only.
    pub pins: Pins,
    pub shardings: &'static [Sharding],
    pub recomputes: &'static [Recompute],
    pub refuse: fn(&Emit<'_>) -> Result<(), CanNot>,
}

impl Software {
    /// Refuses what does not fit under the program; otherwise says what it takes there.
    pub(super) fn check(&self, emit: &Emit<'_>) -> Result<Vec<String>, CanNot> {
        let there = self.estimate(emit, emit.layout);
        let (needs, room) = (there.memory.total(), usable_gb(&emit.cluster.gpu));
        if needs > room {
            let what = format!(
                "this layout: its software needs {} of a GPU that has room for {}, {} more than is there",
                gb(needs),
                gb(room),
                gb(needs - room)
            );
            return Err(CanNot::new(self.program, what, self.instead(emit)));
        }
        let takes = there.time.total();
        let differs = |is: f64, planned: f64| (is / planned - 1.0).abs() > 0.005;
        if !differs(takes, emit.step_time_s) && !differs(needs, emit.memory_gb) {
            return Ok(Vec::new());
        }
        Ok(vec![format!(
            "under {} a step takes {} and a GPU {}; the plan's {} and {} are those of Megatron-Core",
            self.program,
            seconds(takes),
            gb(needs),
            seconds(emit.step_time_s),
            gb(emit.memory_gb)
        )])
    }

    fn estimate(&self, emit: &Emit<'_>, layout: &Layout) -> Estimate {
        let layout = self.as_run(layout);
        estimate(&setup(emit, &layout, self.stack))
    }

    fn as_run(&self, layout: &Layout) -> Layout {
        let sequence_parallel = self.pins.sequence_parallel.unwrap_or(layout.sequence_parallel);
        Layout { sequence_parallel, ..*layout }
    }

    /// What to pin, so that the plan is one that the program has room for.
    fn instead(&self, emit: &Emit<'_>) -> String {
        let found = self
            .fitting(emit)
            .into_iter()
            .map(|layout| (step_time(&setup(emit, &layout, self.stack)).total(), layout));
        match found.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))) {
            Some((takes, layout)) => {
                let needs = gb(self.estimate(emit, &layout).memory.total());
                format!("pin {}, which takes {needs} and {} a step", pins(&layout), seconds(takes))
            }
            None => "nothing that it can do fits; take more GPUs, or --write megatron".to_owned(),
        }
    }

    /// The best of each kind of sharding and recomputation. What is pinned is planned for Megatron-Core again, and must
    /// fit there too.
    fn fitting(&self, emit: &Emit<'_>) -> Vec<Layout> {
        let room = usable_gb(&emit.cluster.gpu);
        let fits = |l: &Layout| {
            let needs = |stack| memory(&setup(emit, l, stack)).total();
            needs(self.stack) <= room && needs(Stack::Current) <= room
        };
        let does = |layout: &Layout| (self.refuse)(&Emit { layout, ..*emit }).is_ok();
        let kinds = self.shardings.iter().flat_map(|s| self.recomputes.iter().map(move |r| (s, r)));
        kinds
            .filter_map(|(sharding, recompute)| {
                let (sharding, recompute) = (Some(*sharding), Some(*recompute));
                best(&Question {
                    arch: emit.arch,
                    workload: emit.workload,
                    cluster: emit.cluster,
                    pins: Pins { sharding, recompute, ..self.pins },
                    goal: Goal::Time,
                    stack: self.stack,
                    fewer: false,
                })
            })
            .filter(|layout| fits(layout) && does(layout))
            .collect()
    }
}

fn setup<'a>(emit: &Emit<'a>, layout: &'a Layout, stack: Stack) -> Setup<'a> {
    let Emit { arch, workload, cluster, .. } = *emit;
    Setup { arch, workload, cluster, layout, stack }
}

/// As flags of `tutti plan`; the data-parallel degree follows from the others.
fn pins(l: &Layout) -> String {
    let degrees = [("tp", l.tp), ("pp", l.pp), ("vp", l.vp), ("cp", l.cp), ("ep", l.ep)];
    let degrees: String = degrees.map(|(axis, n)| format!("--{axis} {n} ")).concat();
    format!(
        "{degrees}--micro-batch {} --zero {} --recompute {} --sequence-parallel {}",
        l.micro_batch,
        job::zero(l.sharding),
        job::recompute(l.recompute),
        l.sequence_parallel
    )
}
