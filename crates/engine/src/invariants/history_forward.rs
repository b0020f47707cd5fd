//! Between two states: time and sequence go forward, what has ended stays as it ended, and a new
//! attempt of a task has a larger generation than the one before.

use tutti_model::{Job, State, TaskId, Tasks};

use super::Breach;

pub fn history_forward(before: &State, after: &State) -> Result<(), Breach> {
    let breach = |found: String| Err(Breach { property: "history_forward", found });
    if after.seq < before.seq || after.at < before.at {
        return breach(format!(
            "{} at {:?} after {} at {:?}",
            after.seq, after.at, before.seq, before.at
        ));
    }
    for (id, old) in &before.jobs {
        let Some(new) = after.job(*id) else {
            if old.is_over() {
                continue;
            }
            return breach(format!("job {id} vanished"));
        };
        if std::ptr::eq(old.as_ref(), new) {
            continue;
        }
        if let Err(found) = job_forward(old, new) {
            return breach(found);
        }
    }
    Ok(())
}

fn job_forward(old: &Job, new: &Job) -> Result<(), String> {
    let ended: Vec<Option<u32>> = match &old.tasks {
        Tasks::One(_) => vec![None],
        Tasks::Array(a) => a.ended.keys().map(|&i| Some(i)).collect(),
    };
    for index in ended {
        let task = TaskId { job: old.id, index };
        if let Some(end) = old.ended(index)
            && new.ended(index) != Some(end)
        {
            return Err(format!("{task} ended as {end:?} and then {:?}", new.ended(index)));
        }
    }
    for (id, task) in old.live_tasks() {
        let (Some(was), Some(is)) = (task.attempt(), new.task(id.index).and_then(|t| t.attempt()))
        else {
            continue;
        };
        if is.generation < was.generation {
            return Err(format!("{id} went from {} back to {}", was.generation, is.generation));
        }
    }
    Ok(())
}
