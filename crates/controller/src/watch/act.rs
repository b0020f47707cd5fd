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
    // Again and again while they stand: a controller that died in between would have forgotten. What
    // is stopping already is left alone by the engine.
    let commands: Vec<Command> = standing.iter().filter_map(command).collect();
    if !commands.is_empty() {
        app.core.tell(commands).await?;
    }
    Ok(())
}

fn command(standing: &Standing) -> Option<Command> {
    let Alert { rule, action, text, .. } = &standing.alert;
    let again = match action {
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
