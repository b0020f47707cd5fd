//! Commands to events. Looks, never changes; what follows from an event is in
//! [`crate::consequences`].

mod endpoints;
mod findings;
mod forget;
mod jobs;
mod keys;
mod ledger;
mod nodes;
mod policy;
mod restored;
mod service;
mod spec;
mod stranded;
mod submit;
mod suspend;
mod tick;
mod tokens;
mod update;

pub(crate) use findings::{explains, own_doing};
pub use forget::forgettable;
pub(crate) use jobs::{ended_waiting, never_ran};
pub(crate) use nodes::{answer, said_by_node};
pub use spec::warnings;
pub use stranded::gives_up_at;
pub(crate) use submit::within_team_limit;
pub(crate) use suspend::may_suspend;
pub(crate) use tick::next_due;

use tutti_model::{Job, JobId, Role, State, Time};

use crate::command::{Actor, Command, Reply};
use crate::event::Event;
use crate::live::Live;
use crate::reject::Rejected;
use crate::settings::Settings;

/// What a decision may look at.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub state: &'a State,
    pub live: &'a Live,
    pub settings: &'a Settings,
    pub now: Time,
}

pub type Decision = Result<(Reply, Vec<Event>), Rejected>;

pub fn decide(view: View<'_>, command: &Command) -> Decision {
    match command {
        Command::Start => Ok(tick::start(view)),
        Command::Restored => Ok((Reply::Done, vec![restored::restored(view)])),
        Command::Tick => Ok((Reply::Done, tick::tick(view))),
        Command::Forget { jobs } => Ok(forget::forget(view, jobs)),
        Command::Submit { actor, spec, user, key } => {
            submit::submit(view, actor, spec, user.as_deref(), key.as_deref())
        }
        Command::Cancel { actor, target } => jobs::cancel(view, actor, *target, false),
        Command::Kill { actor, target } => jobs::cancel(view, actor, *target, true),
        Command::Hold { actor, job } => jobs::hold(view, actor, *job),
        Command::Release { actor, job } => jobs::release(view, actor, *job),
        Command::Suspend { actor, target } => suspend::suspend(view, actor, *target),
        Command::Wake { actor, target } => suspend::wake(view, actor, *target),
        Command::SetPriority { actor, job, priority } => {
            jobs::set_priority(view, actor, *job, *priority)
        }
        Command::Update { actor, job, update } => update::update(view, actor, *job, update),
        Command::Saved { actor, task } => jobs::saved(view, actor, *task),
        Command::Register { actor, task, step, path } => {
            jobs::register(view, actor, *task, *step, path)
        }
        Command::SetPolicy { actor, policy } => policy::set(view, actor, policy),
        Command::ReplacePolicy { actor, old, policy } => policy::replace(view, actor, old, policy),
        Command::Hello { greeting, key, .. } => nodes::hello(view, greeting, key.as_deref()),
        Command::Heartbeat { node, session, parts } => {
            nodes::heartbeat(view, *node, *session, parts)
        }
        Command::Report { node, session, report } => nodes::report(view, *node, *session, report),
        Command::Findings { node, session, findings } => {
            findings::said(view, *node, *session, findings)
        }
        Command::Gone { node, session } => Ok((Reply::Done, nodes::gone(view, *node, *session))),
        Command::Intervene { task, generation, rule, text, again } => {
            let why = jobs::Alarm { rule: *rule, text, again: *again };
            Ok(jobs::intervene(view, *task, *generation, why))
        }
        Command::Drain { actor, node, reason, evict } => {
            nodes::drain(view, actor, node, reason, *evict)
        }
        Command::Resume { actor, node } => nodes::resume(view, actor, node),
        Command::RemoveNode { actor, node, force } => keys::remove(view, actor, node, *force),
        Command::KeyShared { node, first, second } => keys::shared(view, *node, first, second),
        Command::Measured { actor, node, figures } => nodes::measured(view, actor, node, figures),
        Command::GpusMeasured { actor, node, figures } => {
            nodes::gpus_measured(view, actor, node, figures)
        }
        Command::Activity { node, idle, since } => ledger::activity(view, *node, idle, *since),
        Command::DropLedger { day } => ledger::drop_day(view, *day),
        Command::AddToken { actor, token } => tokens::add(actor, token),
        Command::RevokeToken { actor, id } => tokens::revoke(view, actor, id),
        Command::UseJoinToken { id, node, key } => tokens::use_join(view, id, node, key),
        Command::Serve { actor, spec, user, key } => {
            endpoints::serve(view, actor, spec, user.as_deref(), key.as_deref())
        }
        Command::UpdateEndpoint { actor, name, spec, canary } => {
            endpoints::update(view, actor, name, spec, *canary)
        }
        Command::ScaleEndpoint { actor, name, bounds } => {
            endpoints::scale(view, actor, name, *bounds)
        }
        Command::RollBack { actor, name, to } => endpoints::roll_back(view, actor, name, *to),
        Command::StopEndpoint { actor, name } => endpoints::stop(view, actor, name),
        // Noted already; what follows from it is settled afterwards.
        Command::Load { .. } => done(Vec::new()),
        Command::Served { endpoint, more } => endpoints::served(view, endpoint, more),
    }
}

fn done(events: Vec<Event>) -> Decision {
    Ok((Reply::Done, events))
}

fn bad(key: &'static str, problem: impl Into<String>) -> Rejected {
    Rejected::BadSpec { key, problem: problem.into() }
}

fn need_role(actor: &Actor, needs: Role) -> Result<(), Rejected> {
    if actor.role < needs {
        return Err(Rejected::RoleTooLow { user: actor.user.clone(), has: actor.role, needs });
    }
    Ok(())
}

/// For whom the actor acts: only an admin for somebody else.
fn on_behalf<'a>(actor: &'a Actor, user: Option<&'a str>) -> Result<&'a str, Rejected> {
    let user = user.unwrap_or(&actor.user);
    need_role(actor, if user == actor.user { Role::User } else { Role::Admin })?;
    Ok(user)
}

/// The job, if the actor may act on it: its owner, or an admin.
fn own_job<'a>(view: View<'a>, actor: &Actor, id: JobId) -> Result<&'a Job, Rejected> {
    need_role(actor, Role::User)?;
    let job = view.state.job(id).ok_or(Rejected::NoSuchJob(id))?;
    if actor.role < Role::Admin && job.user != actor.user {
        return Err(Rejected::NotYours {
            job: id,
            owner: job.user.clone(),
            user: actor.user.clone(),
        });
    }
    Ok(job)
}
