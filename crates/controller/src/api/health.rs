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
use crate::core::World;
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
    let Found { node, simulated, gpus } = find(&app, &name).await?;
    if !simulated && !body.real {
        let message = format!("the devices of {name} are real: jobs on them would be stopped");
        return Err(Problem::conflict(message).hint("repeat it with --real if that is meant"));
    }
    let gpu = body.gpu.map(GpuIndex);
    if let Some(gpu) = gpu.filter(|g| !gpus.contains(g)) {
        return Err(no_gpu(&name, gpu, &gpus));
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
        (Some(xid), None) if body.action.is_some() || body.text.is_some() => {
            let message =
                format!("XID {xid} has its own action and text: leave action and text out");
            Err(Problem::invalid(message).hint("they are for a check of your own (check)"))
        }
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
    let Found { node, gpus, .. } = find(&app, &name).await?;
    let (gpu, key, by) = (body.gpu.map(GpuIndex), body.key, caller.actor.user);
    let resolve = HealthAsk::Resolve { gpu, key: key.clone(), by, unchecked: body.unchecked };
    let board = ask(&app, node, &name, resolve).await?;
    // One that fell off the bus may still have something to be resolved.
    let nowhere = |gpu: &GpuIndex| !gpus.contains(gpu) && board.touched.is_empty();
    if let Some(gpu) = gpu.filter(nowhere) {
        return Err(no_gpu(&name, gpu, &gpus));
    }
    match key.as_deref().and_then(|key| unknown(&name, key, &board)) {
        Some(problem) => Err(problem),
        None => Ok(Json(board)),
    }
}

/// A key that the board has never had, as far as it can tell.
fn unknown(name: &str, key: &str, board: &Board) -> Option<Problem> {
    let has = |findings: &[Finding]| findings.iter().any(|f| f.key == key);
    if has(&board.findings) || has(&board.touched) {
        return None;
    }
    let keys: Vec<&str> = board.findings.iter().map(|f| f.key.as_str()).collect();
    let hint = match keys.as_slice() {
        [] => "nothing is wrong with it".to_owned(),
        keys => format!("there are: {}", keys.join(", ")),
    };
    Some(Problem::not_found(format!("{name} has no finding '{key}'")).hint(hint))
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
    let Found { node, .. } = find(&app, &name).await?;
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
    let Found { node, .. } = find(&app, &name).await?;
    match answer(&link_of(&app, node, &name)?, &name, HealthAsk::Examine).await? {
        HealthReply::Examined(examination) => Ok(Json(*examination)),
        other => Err(odd(&name, &other)),
    }
}

struct Found {
    node: NodeId,
    simulated: bool,
    gpus: Vec<GpuIndex>,
}

async fn find(app: &App, name: &str) -> Result<Found, Problem> {
    let found = |world: &World| {
        let node = world.engine.state().node_named(name)?;
        let gpus = node.facts.gpus.iter().map(|g| g.index).collect();
        Some(Found { node: node.id, simulated: node.facts.simulated, gpus })
    };
    let found = app.core.read(found).await?;
    Ok(found.ok_or_else(|| Rejected::NoSuchNode(name.to_owned()))?)
}

fn no_gpu(name: &str, gpu: GpuIndex, gpus: &[GpuIndex]) -> Problem {
    Problem::invalid(format!("{name} has no GPU {gpu}: it has {}", gpus.len()))
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
    fn an_unknown_key_is_answered_with_those_that_there_are() {
        let finding = |key: &str| Finding {
            key: key.into(),
            check: "disk".into(),
            gpu: None,
            action: HealthAction::Note,
            text: String::new(),
            since: tutti_model::Time(0),
            drill: false,
            by_job: false,
        };
        let board = |findings: &[&str], touched: &[&str]| Board {
            findings: findings.iter().map(|k| finding(k)).collect(),
            touched: touched.iter().map(|k| finding(k)).collect(),
            active: None,
        };
        let problem = unknown("n1", "dsk", &board(&["clock", "disk"], &[])).unwrap();
        assert_eq!(problem.error.message, "n1 has no finding 'dsk'");
        assert_eq!(problem.error.hint.as_deref(), Some("there are: clock, disk"));
        assert!(unknown("n1", "disk", &board(&["clock"], &["disk"])).is_none());
        assert!(unknown("n1", "disk", &board(&["disk"], &[])).is_none(), "it did not pass");
    }

    #[test]
    fn an_xid_brings_its_own_action() {
        let body = |xid, check: Option<&str>, action| InjectRequest {
            gpu: Some(0),
            xid,
            check: check.map(str::to_owned),
            action,
            text: None,
            real: false,
        };
        let action = Some(HealthAction::FenceGpu);
        let problem = drilled(&body(Some(79), None, action)).unwrap_err();
        assert!(problem.error.message.starts_with("XID 79 has its own action"));
        assert_eq!(drilled(&body(Some(79), None, None)).unwrap(), DrillWhat::Xid { xid: 79 });
        assert!(drilled(&body(None, Some("fan"), action)).is_ok());
    }

    #[test]
    fn a_check_that_takes_long_is_not_called_an_old_agent() {
        let hint = |within| late("n1", within).error.hint.unwrap();
        assert!(hint(CHECKED_WITHIN).starts_with("it may still be checking GPUs"));
        assert!(hint(ANSWER_WITHIN).ends_with("update it"));
    }
}
