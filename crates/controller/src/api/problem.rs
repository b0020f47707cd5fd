//! Every error of the API: one shape, one table from refusals to status, code, exit and hint.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tutti_engine::{CantSuspend, Mistake, Rejected};
use tutti_model::{Impossible, TaskId};
use tutti_wire::api::{ApiError, NODE_REMOVED, POLICY_MOVED, ProblemRow};

use super::missing::MissingTask;
use crate::core::{CallError, Stopped};
use crate::room::NoRoom;

/// Exit codes of the command line, fixed because scripts rely on them.
pub mod exit {
    pub const FAILED: i32 = 1;
    pub const INVALID: i32 = 2;
    pub const NOT_FOUND: i32 = 3;
    pub const DENIED: i32 = 4;
    pub const IMPOSSIBLE: i32 = 5;
    pub const UNREACHABLE: i32 = 75;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub status: StatusCode,
    pub error: ApiError,
    /// What was asked for, where it is a task that is not there.
    pub missing: Option<Box<TaskId>>,
}

/// Put into responses for the audit log.
#[derive(Clone)]
pub struct ProblemCode(pub String);

impl Problem {
    pub fn new(status: StatusCode, code: &str, exit: i32, message: impl Into<String>) -> Problem {
        let (code, message) = (code.to_owned(), message.into());
        let error = ApiError { code, message, hint: None, exit, problems: Vec::new() };
        Problem { status, error, missing: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.error.hint = Some(hint.into());
        self
    }

    pub fn invalid(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid", exit::INVALID, message)
    }
    pub fn not_found(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found", exit::NOT_FOUND, message)
    }
    /// Not found, but once it was: who looks for it need not look elsewhere.
    pub fn removed(node: &str, by: &str) -> Problem {
        let message = format!("node '{node}' was removed from the cluster by {by}");
        Problem::new(StatusCode::NOT_FOUND, NODE_REMOVED, exit::NOT_FOUND, message)
            .hint("`tutti nodes` lists those that are there")
    }
    pub fn unauthorized(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", exit::DENIED, message)
    }
    pub fn denied(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "denied", exit::DENIED, message)
    }
    pub fn conflict(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, "conflict", exit::FAILED, message)
    }
    /// Something on this side, which the caller can't change.
    pub fn broken(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "broken", exit::FAILED, message)
    }
    /// A mistake of ours.
    pub fn internal(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", exit::FAILED, message)
    }
    pub fn unavailable(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", exit::UNREACHABLE, message)
    }
}

/// A policy that can't become the running one, which stays as it is.
pub fn bad_policy(problems: Vec<ProblemRow>) -> Problem {
    let text = |p: &ProblemRow| {
        let line = p.line.map_or_else(String::new, |l| format!("line {l}: "));
        let path = if p.path.is_empty() { String::new() } else { format!("{}: ", p.path) };
        format!("{line}{path}{}", p.problem)
    };
    let list = problems.iter().map(text).collect::<Vec<_>>().join("; ");
    let message = format!("the policy was not changed: {list}");
    let mut problem =
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_policy", exit::INVALID, message);
    problem.error.problems = problems;
    problem
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let code = ProblemCode(self.error.code.clone());
        let missing =
            self.missing.map(|task| MissingTask { task: *task, error: self.error.clone() });
        let mut response = (self.status, Json(self.error)).into_response();
        response.extensions_mut().insert(code);
        if let Some(missing) = missing {
            response.extensions_mut().insert(missing);
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            let soon = http::HeaderValue::from_static("1");
            response.headers_mut().insert(http::header::RETRY_AFTER, soon);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = http::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(http::header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

impl From<NoRoom> for Problem {
    fn from(no_room: NoRoom) -> Problem {
        let status = StatusCode::INSUFFICIENT_STORAGE;
        Problem::new(status, "no_room", exit::FAILED, no_room.to_string()).hint(
            "an admin has to free some space on the disk of the controller's data dir; jobs that are here go on",
        )
    }
}

impl From<Stopped> for Problem {
    fn from(stopped: Stopped) -> Problem {
        Problem::unavailable(stopped.to_string())
            .hint("repeat the request when the controller is back; with the same Idempotency-Key nothing is done twice")
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Problem {
        match error {
            CallError::Rejected(rejected) => rejected.into(),
            CallError::Stopped(stopped) => stopped.into(),
        }
    }
}

/// The one table.
impl From<Rejected> for Problem {
    fn from(rejected: Rejected) -> Problem {
        use Rejected as R;
        if let R::BadPolicy(problems) = rejected {
            return bad_policy(problems.into_iter().map(ProblemRow::from).collect());
        }
        let message = rejected.to_string();
        let (make, hint): (fn(String) -> Problem, Option<&str>) = match &rejected {
            R::NoSuchJob(_) => (
                not_found,
                Some("`tutti ps` lists the jobs, `tutti ps --since 30d` also what ended"),
            ),
            R::NoSuchTask(_) => {
                (not_found, Some("`tutti show` on the job says which tasks it has"))
            }
            R::NoSuchNode(_) => (not_found, Some("`tutti nodes` lists the nodes")),
            R::NoSuchToken(_) => (not_found, Some("`tutti token list` lists the tokens")),
            R::StaleSession(_) => (conflict, None),
            R::NotYours { .. } => (denied, Some("only its owner and admins may do that")),
            R::RoleTooLow { .. } => (denied, Some("ask an admin for a token with that role")),
            R::BadSpec { .. } | R::Unparsable(_) | R::BadPolicy(_) => (invalid, None),
            R::NoSuchTeam { .. } => (invalid, Some("`tutti quota` lists the teams")),
            R::NotInTeam { .. } => (denied, Some("an admin adds members in the policy file")),
            R::NoSuchClass { .. } => (invalid, Some("`tutti policy show` lists the classes")),
            R::PolicyMoved => (
                moved,
                Some("read it again, make your change to that, and send it with its new ETag"),
            ),
            R::TooManySpecBytes { .. } => (
                conflict,
                Some(
                    "cancel jobs or wait until some have ended, put scripts and data into files, or ask an admin to raise user_bytes or team_bytes in [submissions] of the policy",
                ),
            ),
            R::NotRunning(_) | R::DayNotSealed(_) => (conflict, None),
            R::NotSuspended(_) => (conflict, Some("`tutti ps` shows which jobs are suspended")),
            R::CantSuspend { why, .. } => (conflict, Some(instead_of_suspending(why))),
            R::Impossible(what) => (impossible, Some(what_there_is(what))),
            R::UnknownDependency(_) => (invalid, Some("`tutti ps` lists the jobs")),
            R::DependencyCycle(_) => (invalid, None),
            R::DependencyUnmet(_) => (
                conflict,
                Some("submit it without this dependency, or run the other job again first"),
            ),
            R::KeyReused(_) => (
                conflict,
                Some(
                    "a new job needs a new key: --key of `tutti submit`, Idempotency-Key of the API",
                ),
            ),
            R::AlreadyEnded(_) => (conflict, None),
            R::CantUpdate { .. } => {
                (conflict, Some("cancel it and submit it again with what it is to have"))
            }
            R::IsReplica { .. } => {
                (conflict, Some("`tutti serve FILE --update` changes the endpoint"))
            }
            R::PlanRefused(_) => (
                internal,
                Some("this is a bug in the scheduler: nothing was started; please report it"),
            ),
            R::NameTaken(_) | R::NodeRemoved { .. } | R::OtherKey(_) => (denied, None),
            R::NodeBusy { .. } => (conflict, None),
            R::Endpoint(refused) => {
                let make = match refused.mistake() {
                    Mistake::NotFound => not_found,
                    Mistake::Conflict => conflict,
                    Mistake::Denied => denied,
                    Mistake::Invalid => invalid,
                };
                (make, Some(refused.hint()))
            }
            R::JoinRefused(_) => (denied, Some("make a new one with `tutti token create --join`")),
        };
        let mut problem = make(message);
        if let R::NoSuchTask(task) = rejected {
            problem.missing = Some(Box::new(task));
        }
        hint.map_or(problem.clone(), |h| problem.hint(h))
    }
}

/// How else to get at the GPUs of a job that can't be suspended.
fn instead_of_suspending(why: &CantSuspend) -> &'static str {
    match why {
        CantSuspend::NotRunning => "`tutti show` says where it is",
        CantSuspend::Memory { .. } => "`tutti nodes` shows what takes memory there",
        CantSuspend::Share
        | CantSuspend::Exclusive
        | CantSuspend::Node { .. }
        | CantSuspend::Refused { .. } => {
            "`tutti cancel` stops it; a job that saves goes on from its checkpoint when it is submitted again"
        }
    }
}

/// Where to see what could be asked for.
fn what_there_is(what: &Impossible) -> &'static str {
    match what {
        Impossible::OverTeamLimit { .. } => "`tutti quota` shows what each team may have",
        Impossible::NoSuchLabels { .. } => "`tutti nodes --labels` shows the labels of each node",
        _ => "`tutti nodes` shows what the cluster has",
    }
}

fn not_found(message: String) -> Problem {
    Problem::not_found(message)
}
fn conflict(message: String) -> Problem {
    Problem::conflict(message)
}
fn denied(message: String) -> Problem {
    Problem::denied(message)
}
fn invalid(message: String) -> Problem {
    Problem::invalid(message)
}
fn impossible(message: String) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "impossible", exit::IMPOSSIBLE, message)
}
fn moved(message: String) -> Problem {
    Problem::new(StatusCode::PRECONDITION_FAILED, POLICY_MOVED, exit::FAILED, message)
}
fn internal(message: String) -> Problem {
    Problem::internal(message)
}
