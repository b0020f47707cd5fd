//! Scene: many small tasks from one submission.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::ArraySpec;
use tutti_wire::api::{JobQuery, LogQuery};

use super::gang::seconds;
use super::report::ArrayFigures;
use super::stage::{Stage, check, exit_text};
use super::summary::seconds_text;
use crate::fail::Fail;

const TASKS: u32 = 200;

/// Fails unless the task has the environment that it was promised.
const TASK: &str =
    r#"[ "$TUTTI_ARRAY_TASKS" = 200 ] && echo "task $TUTTI_ARRAY_INDEX on $TUTTI_NODE""#;

pub fn play(stage: &mut Stage<'_>) -> Result<ArrayFigures, Fail> {
    stage.view.begin("array", &format!("{TASKS} tasks, one simulated GPU each"));
    let mut spec = stage.shell("array", TASK);
    let indices: ArraySpec = format!("0-{}", TASKS - 1)
        .parse()
        .map_err(|e| Fail::new(format!("the array can't be written: {e}")))?;
    spec.array = Some(indices);
    let id = stage.submit(spec)?;
    let job = stage.completed(id, |job| {
        if let Some(counts) = &job.row.array {
            stage.view.now(&format!(
                "{} of {TASKS} done, {} running, {} waiting",
                counts.completed, counts.running, counts.pending
            ));
        }
        Ok(())
    })?;
    let exit_codes = exit_codes(stage, id)?;
    says_what_it_should(stage, id, 137)?;
    let seconds = seconds(Some(job.row.submitted_at), job.row.ended_at)?;
    let figures = ArrayFigures {
        job: id,
        tasks: TASKS.into(),
        seconds,
        tasks_per_second: f64::from(TASKS) / seconds.max(0.001),
        exit_codes,
    };
    stage.view.done(&format!(
        "{TASKS} tasks in {}: {:.0} tasks/s, every exit code 0",
        seconds_text(seconds),
        figures.tasks_per_second
    ));
    Ok(figures)
}

/// One row for each task: all there, each once, each with 0.
fn exit_codes(stage: &Stage<'_>, id: tutti_model::TaskId) -> Result<BTreeMap<i32, u64>, Fail> {
    let query = JobQuery {
        id: Some(id.job.to_string()),
        tasks: true,
        limit: Some(10_000),
        ..JobQuery::default()
    };
    let rows = stage.client().jobs(&query)?.jobs;
    let indices: BTreeSet<u32> = rows.iter().filter_map(|r| r.id.index).collect();
    check(indices.iter().copied().eq(0..TASKS), || {
        format!("the list shows {} of {TASKS} tasks", indices.len())
    })?;
    let mut codes = BTreeMap::new();
    for row in rows.iter().filter(|r| r.id.index.is_some()) {
        let code = row.exit_code.filter(|&c| c == 0).ok_or_else(|| {
            Fail::new(format!("task {} has exit code {}", row.id, exit_text(row.exit_code)))
        })?;
        *codes.entry(code).or_insert(0) += 1;
    }
    Ok(codes)
}

fn says_what_it_should(stage: &Stage<'_>, id: tutti_model::TaskId, index: u32) -> Result<(), Fail> {
    let task = tutti_model::TaskId::of_array(id.job, index);
    let lines = stage.log(task, &LogQuery::default())?;
    let want = format!("task {index} on n");
    check(lines.len() == 1 && lines[0].1.starts_with(&want), || {
        format!("the log of task {task} should have one line '{want}…', but is {lines:?}")
    })
}
