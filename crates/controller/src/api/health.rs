//! What operators do about the health of a node: fire drills, resolving, looking. The board is the
//! agent's; the controller asks for it and takes over what it says.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use tutti_engine::{Command, Rejected};
use tutti_model::{ActiveReport, Finding, GpuIndex, HealthAction, NodeId};
use tutti_wire::api::{Board, InjectRequest, ResolveRequest};
use tutti_wire::stream::{Drill, DrillWhat, Examination, HealthAsk, HealthReply, ToAgent};

use super::App;
use super::auth::{Caller, Target};
use super::body::{Named, Strict};
use super::exec::link_of;
use super::openapi::Problems;
use super::problem::Problem;
use crate::links::{Answer, Link};

/// An agent answers from memory; one that takes longer hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// One that checks GPUs first may take longer than a client waits: a minute and more for each group of
/// GPUs, and other checks may be before it.
const CHECKED_WITHIN: Duration = Duration::from_secs(115);
const TEXT_CHARS_MAX: usize = 200;

/// Makes a node believe that something broke: seen, fenced, jobs moved, shown. Only on simulated
/// devices, unless `real` is set.
#[utoipa::path(post, path = "/api/v1/nodes/{name}/inject", tag = "nodes",
    request_body = InjectRequest, params(("name" = String, Path)),
    responses((status = 200, body = Board), Problems))]
pub async fn inject(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
    Strict(body): Strict<InjectRequest>,
) -> Result<(Extension<Target>, Json<Board>), Problem> {
    let (node, simulated, gpus) = app
        .core
        .read(|world| {
            let node = world.engine.state().node_named(&name)?;
            let gpus: Vec<GpuIndex> = node.facts.gpus.iter().map(|g| g.index).collect();
            Some((node.id, node.facts.simulated, gpus))
        })
        .await?
        .ok_or_else(|| Rejected::NoSuchNode(name.clone()))?;
    if !simulated && !body.real {
        let message = format!("the devices of {name} are real: jobs on them would be stopped");
        return Err(Problem::conflict(message).hint("repeat it with --real if that is meant"));
    }
    let gpu = body.gpu.map(GpuIndex);
    if let Some(gpu) = gpu.filter(|g| !gpus.contains(g)) {
        return Err(Problem::invalid(format!("{name} has no GPU {gpu}: it has {}", gpus.len())));
    }
    let what = drilled(&body)?;
    let words = describe(&what);
    let drill = Drill { gpu, what, by: caller.actor.user };
    let board = ask(&app, node, &name, HealthAsk::Inject(drill)).await?;
    let on = gpu.map_or_else(String::new, |gpu| format!(" GPU {gpu}"));
    Ok((Extension(Target(format!("{name}{on}: {words}"))), Json(board)))
}

fn drilled(body: &InjectRequest) -> Result<DrillWhat, Problem> {
    match (body.xid, &body.check) {
        (Some(xid), None) if body.gpu.is_some() => Ok(DrillWhat::Xid { xid }),
        (Some(_), None) => Err(Problem::invalid("an XID is an error of a GPU: say which (gpu)")),
        (None, Some(check)) => {
            let sane = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if check.is_empty() || check.len() > 40 || !check.chars().all(sane) {
                return Err(Problem::invalid(format!("check: '{check}' is no name")));
            }
            let action = body.action.unwrap_or(HealthAction::Note);
            let on_gpu = matches!(action, HealthAction::FenceGpu | HealthAction::ResetGpu);
            if on_gpu && body.gpu.is_none() {
                let message = format!("{} is for a GPU: say which (gpu)", action.as_str());
                return Err(Problem::invalid(message));
            }
            let text = body.text.as_deref().unwrap_or("a fire drill");
            let text = text.chars().filter(|c| !c.is_control()).take(TEXT_CHARS_MAX).collect();
            Ok(DrillWhat::Finding { check: check.clone(), action, text })
        }
        (None, None) => Err(Problem::invalid("say what breaks: xid, or check with action")),
        (Some(_), Some(_)) => Err(Problem::invalid("either xid or check, not both")),
    }
}

fn describe(what: &DrillWhat) -> String {
    match what {
        DrillWhat::Xid { xid } => format!("XID {xid}"),
        DrillWhat::Finding { check, action, .. } => format!("{check}, {}", action.as_str()),
    }
}

/// Takes findings off a node's board. What is still wrong is found again.
#[utoipa::path(post, path = "/api/v1/nodes/{name}/resolve", tag = "nodes",
    request_body = ResolveRequest, params(("name" = String, Path)),
    responses((status = 200, body = Board), Problems))]
pub async fn resolve(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
    Strict(body): Strict<ResolveRequest>,
) -> Result<Json<Board>, Problem> {
    let node = find(&app, &name).await?;
    let (gpu, key, by) = (body.gpu.map(GpuIndex), body.key, caller.actor.user);
    let resolve = HealthAsk::Resolve { gpu, key, by, unchecked: body.unchecked };
    ask(&app, node, &name, resolve).await.map(Json)
}

/// Makes the GPUs of a node that nobody uses compute something whose answer is known. What is found
/// wrong stands on the node's board then.
#[utoipa::path(post, path = "/api/v1/nodes/{name}/check", tag = "nodes",
    params(("name" = String, Path)),
    responses((status = 200, body = ActiveReport), Problems))]
pub async fn check(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
) -> Result<Json<ActiveReport>, Problem> {
    let node = find(&app, &name).await?;
    match answer(&link_of(&app, node, &name)?, &name, HealthAsk::Check).await? {
        HealthReply::Checked(report) => Ok(Json(*report)),
        other => Err(odd(&name, &other)),
    }
}

/// What the node's agent knows of its health, and what it can't watch.
#[utoipa::path(get, path = "/api/v1/nodes/{name}/health", tag = "nodes",
    params(("name" = String, Path)),
    responses((status = 200, body = Examination), Problems))]
pub async fn examine(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
) -> Result<Json<Examination>, Problem> {
    let node = find(&app, &name).await?;
    match answer(&link_of(&app, node, &name)?, &name, HealthAsk::Examine).await? {
        HealthReply::Examined(examination) => Ok(Json(*examination)),
        other => Err(odd(&name, &other)),
    }
}

async fn find(app: &App, name: &str) -> Result<NodeId, Problem> {
    let node = app.core.read(|world| world.engine.state().node_named(name).map(|n| n.id)).await?;
    Ok(node.ok_or_else(|| Rejected::NoSuchNode(name.to_owned()))?)
}

/// Asks the agent, and takes over what stands now before anybody is answered.
async fn ask(app: &App, node: NodeId, name: &str, ask: HealthAsk) -> Result<Board, Problem> {
    let link = link_of(app, node, name)?;
    let (findings, touched, active): (Vec<Finding>, _, _) = match answer(&link, name, ask).await? {
        HealthReply::Board { findings, touched, active } => (findings, touched, active),
        other => return Err(odd(name, &other)),
    };
    let level = findings.clone();
    let command = Command::Findings { node, session: link.session, findings: level };
    app.core.call(command).await?;
    Ok(Board { findings, touched, active })
}

async fn answer(link: &Arc<Link>, name: &str, ask: HealthAsk) -> Result<HealthReply, Problem> {
    let within = match &ask {
        HealthAsk::Check | HealthAsk::Resolve { .. } => CHECKED_WITHIN,
        HealthAsk::Inject(_) | HealthAsk::Examine => ANSWER_WITHIN,
    };
    let mut answers = link.request(|request| ToAgent::Health { request, ask });
    match tokio::time::timeout(within, answers.next()).await {
        Ok(Ok(Answer::Health(HealthReply::Refused { reason }))) => Err(Problem::conflict(reason)),
        Ok(Ok(Answer::Health(reply))) => Ok(reply),
        Ok(Ok(_)) => Err(Problem::unavailable(format!("{name} answered something else"))
            .hint("update its agent")),
        Ok(Err(gone)) => {
            Err(Problem::unavailable(format!("{name}: {gone}")).hint("try again in a moment"))
        }
        Err(_) => Err(late(name, within)),
    }
}

fn late(name: &str, within: Duration) -> Problem {
    let message = format!("the agent of {name} did not answer within {} s", within.as_secs());
    let hint = match within {
        CHECKED_WITHIN => format!(
            "it may still be checking GPUs, and then does what was asked: `tutti doctor {name}` says \
             whether it is; an agent of an older version does not know the question"
        ),
        _ => "an agent of an older version does not know the question: update it".to_owned(),
    };
    Problem::unavailable(message).hint(hint)
}

fn odd(name: &str, reply: &HealthReply) -> Problem {
    tracing::warn!(node = name, ?reply, "an odd answer");
    Problem::unavailable(format!("{name} answered another question")).hint("update its agent")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_takes_long_is_not_called_an_old_agent() {
        let hint = |within| late("n1", within).error.hint.unwrap();
        assert!(hint(CHECKED_WITHIN).starts_with("it may still be checking GPUs"));
        assert!(hint(ANSWER_WITHIN).ends_with("update it"));
    }
}
