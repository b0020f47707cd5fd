//! What alerts do to jobs.

use tutti_engine::Command;
use tutti_model::{Alert, Generation, State, TaskId, WatchAction, WatchRule};
use tutti_watch::{Change, Standing};
use tutti_wire::stream::{ToAgent, Warning};

use crate::api::App;
use crate::core::Stopped;

/// Who did it, in logs.
pub const BY: &str = "watch";

pub async fn act(app: &App, changes: &[Change], standing: &[Standing]) -> Result<(), Stopped> {
    for change in changes {
        if let Change::Began(alert) = change
            && alert.action >= WatchAction::Warn
        {
            warn(app, alert)?;
        }
    }
    // Again and again while it is so: a controller that died in between would have forgotten. What is
    // stopping already is left alone by the engine.
    let commands: Vec<Command> = standing.iter().filter_map(command).collect();
    if !commands.is_empty() {
        app.core.tell(commands).await?;
    }
    Ok(())
}

fn command(standing: &Standing) -> Option<Command> {
    let Alert { rule, action, text, .. } = &standing.alert;
    if !standing.bad {
        return None;
    }
    let again = match action {
        // An old policy may still say so; what fails is started again anyway.
        WatchAction::Requeue if *rule == WatchRule::CrashLoop => return None,
        WatchAction::Requeue => true,
        WatchAction::Kill => false,
        WatchAction::Off | WatchAction::Tell | WatchAction::Warn => return None,
    };
    let task = standing.alert.subject.task()?;
    // A crash loop is about all attempts; everything else about the one that was seen.
    let generation = (*rule != WatchRule::CrashLoop).then_some(Generation(standing.era));
    Some(Command::Intervene { task, generation, rule: *rule, text: text.clone(), again })
}

/// Every node of the job puts it where the ranks can read it.
fn warn(app: &App, alert: &Alert) -> Result<(), Stopped> {
    let Some(task) = alert.subject.task() else { return Ok(()) };
    let nodes = app.core.peek(|world| nodes_of(world.engine.state(), task))?;
    for node in nodes {
        if let Some(link) = app.links.get(node) {
            let (rule, text, at) = (alert.rule, alert.text.clone(), alert.fired_at);
            link.send(ToAgent::Warn { task, warning: Warning { rule, text, at } });
        }
    }
    Ok(())
}

fn nodes_of(state: &State, task: TaskId) -> Vec<tutti_model::NodeId> {
    let attempt = state.job(task.job).and_then(|job| job.task(task.index)?.attempt());
    attempt.map_or_else(Vec::new, |attempt| attempt.parts.iter().map(|part| part.node).collect())
}

#[cfg(test)]
mod tests {
    use tutti_model::{AskedBy, JobId, Subject, Time};

    use super::*;

    fn standing(rule: WatchRule, action: WatchAction, bad: bool) -> Standing {
        let alert = Alert {
            id: 1,
            rule,
            subject: Subject::Job { id: TaskId::single(JobId(7)) },
            asked_by: AskedBy::Policy,
            action,
            text: "its GPU does nothing".into(),
            job: None,
            since: Time(0),
            fired_at: Time(0),
            ended_at: None,
        };
        Standing { alert, era: 4, bad }
    }

    #[test]
    fn nothing_happens_to_a_job_that_is_not_bad_now() {
        let idle = |action, bad| command(&standing(WatchRule::Idle, action, bad));
        for action in [WatchAction::Requeue, WatchAction::Kill] {
            let Some(Command::Intervene { generation, again, .. }) = idle(action, true) else {
                panic!("{action:?} is done");
            };
            assert_eq!(generation, Some(Generation(4)));
            assert_eq!(again, action == WatchAction::Requeue);
            assert_eq!(idle(action, false), None, "well again for a moment, or not known");
        }
        assert_eq!(idle(WatchAction::Warn, true), None, "that was done when it began");
    }

    #[test]
    fn a_crash_loop_is_killed_in_whatever_attempt_it_is_and_never_requeued() {
        let circling = |action| command(&standing(WatchRule::CrashLoop, action, true));
        let killed = circling(WatchAction::Kill);
        let all = matches!(killed, Some(Command::Intervene { generation: None, again: false, .. }));
        assert!(all, "{killed:?}");
        assert_eq!(circling(WatchAction::Requeue), None);
    }
}
