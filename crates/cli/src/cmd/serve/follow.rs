//! Looks again and again until an endpoint answers, and says on the way what each replica does.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tutti_model::{JobId, JobState, ReplicaPhase, TaskId, Time};
use tutti_wire::api::{EndpointDetail, JobQuery, ReplicaRow, Serving};
use tutti_wire::client::Client;

use super::standing::{self, Standing, Told};
use super::view::View;
use crate::cmd::run::INTERRUPTED;
use crate::fail::{Fail, job_exit};
use crate::local::StopSignals;
use crate::show::{count, harmless, time, urls};
use crate::{session, terminal};

const LOOK_EVERY: Duration = Duration::from_millis(300);
/// A signal is noticed sooner than the next look.
const TICK: Duration = Duration::from_millis(50);

pub fn until_it_answers(
    client: &Client,
    serving: &Serving,
    stop: &StopSignals,
) -> Result<ExitCode, Fail> {
    let mut watch = Watch {
        client,
        view: View::new(),
        seen: BTreeSet::new(),
        runs_since: BTreeMap::new(),
        last_failed: None,
    };
    let end = watch.until(serving, stop);
    watch.view.finish();
    match end? {
        End::Interrupted => {
            let name = &serving.name;
            terminal::complain(&format!(
                "{name} goes on without you: tutti endpoints show {name} says how far it is, tutti \
                 endpoints stop {name} ends it"
            ));
            Ok(job_exit(INTERRUPTED))
        }
        End::Answers(endpoint, after) => {
            terminal::complain(&answers(&endpoint, after));
            Ok(ExitCode::SUCCESS)
        }
        End::Failed(endpoint, why) => Err(watch.failed(&endpoint, serving, &why)),
    }
}

enum End {
    Answers(Box<EndpointDetail>, Duration),
    Failed(Box<EndpointDetail>, String),
    Interrupted,
}

struct Watch<'a> {
    client: &'a Client,
    view: View,
    /// Replicas that were there and not on their way out.
    seen: BTreeSet<JobId>,
    runs_since: BTreeMap<JobId, Time>,
    last_failed: Option<JobId>,
}

impl Watch<'_> {
    fn until(&mut self, serving: &Serving, stop: &StopSignals) -> Result<End, Fail> {
        let began = Instant::now();
        let mut next = began;
        loop {
            if stop.asked() {
                return Ok(End::Interrupted);
            }
            if Instant::now() < next {
                std::thread::sleep(TICK);
                continue;
            }
            next = Instant::now() + LOOK_EVERY;
            let endpoint = match self.client.endpoint_detail(&serving.name) {
                Ok(endpoint) => endpoint,
                // It goes on without its controller.
                Err(e) if e.is_unreachable() => continue,
                Err(e) => return Err(e.into()),
            };
            self.say_who_is_gone(&endpoint);
            let standing = standing::of(&endpoint, serving.revision);
            let told = endpoint.replicas.iter().map(|r| (r.job, self.told(r))).collect();
            self.view.show(&standing::head(&endpoint), &told);
            match standing {
                Standing::Coming => {}
                Standing::Answers | Standing::Asleep => {
                    return Ok(End::Answers(Box::new(endpoint), began.elapsed()));
                }
                Standing::Failed(why) => return Ok(End::Failed(Box::new(endpoint), why)),
            }
        }
    }

    fn told(&mut self, replica: &ReplicaRow) -> Told {
        let now = session::now(self.client);
        let runs = replica.state == JobState::Running;
        let runs_since = runs.then(|| *self.runs_since.entry(replica.job).or_insert(now));
        let unexplained = replica.state == JobState::Pending && replica.why.is_none();
        let verdict = unexplained.then(|| self.client.job(TaskId::single(replica.job)).ok());
        let verdict = verdict.flatten().map(|job| job.row.note);
        standing::replica(replica, verdict.as_deref(), runs_since, now)
    }

    /// A replica whose job is over leaves the list, so its end is asked for by its id.
    fn say_who_is_gone(&mut self, endpoint: &EndpointDetail) {
        let here: BTreeSet<JobId> = endpoint.replicas.iter().map(|r| r.job).collect();
        let gone: Vec<JobId> = self.seen.difference(&here).copied().collect();
        for job in gone {
            self.seen.remove(&job);
            let Ok(detail) = self.client.job(TaskId::single(job)) else { continue };
            if detail.row.state == JobState::Failed {
                self.last_failed = Some(job);
                let note = harmless(&detail.row.note);
                self.view.note(&format!("  replica (job {job}) failed: {note}"));
            }
        }
        let stays = |r: &&ReplicaRow| !matches!(r.phase, ReplicaPhase::Draining { .. });
        self.seen.extend(endpoint.replicas.iter().filter(stays).map(|r| r.job));
    }

    fn failed(&self, endpoint: &EndpointDetail, serving: &Serving, why: &str) -> Fail {
        let (name, revision) = (&endpoint.row.name, serving.revision);
        let of_it =
            endpoint.replicas.iter().filter(|r| r.revision == revision).map(|r| r.job).max();
        let job = self.last_failed.or_else(|| self.failed_unseen(name)).or(of_it);
        let why = harmless(why);
        let (message, end) = match endpoint.row.ready {
            0 => {
                let end = format!("; tutti endpoints stop {name} gives up");
                (format!("{name} does not answer: {why}"), end)
            }
            // Others serve on.
            _ => {
                (format!("{name} answers, but not with revision {revision}: {why}"), String::new())
            }
        };
        Fail::new(message).hint(match job {
            Some(job) => format!("tutti logs {job} has what it said{end}"),
            None => format!("tutti endpoints show {name} has the whole story{end}"),
        })
    }

    /// One that came and went between two looks.
    fn failed_unseen(&self, name: &str) -> Option<JobId> {
        let query = JobQuery {
            name: Some(name.to_owned()),
            state: Some(JobState::Failed.as_str().to_owned()),
            newest: true,
            limit: Some(1),
            ..JobQuery::default()
        };
        let newest = self.client.jobs(&query).ok()?.jobs.into_iter().next()?;
        (newest.name == name).then_some(newest.id.job)
    }
}

fn answers(e: &EndpointDetail, after: Duration) -> String {
    let row = &e.row;
    let took = time::short(tutti_model::Span(after.as_millis() as u64));
    let how = match row.ready {
        0 => format!("{} sleeps until the first request", row.name),
        n => format!("{} answers: {} ready after {took}", row.name, count(n.into(), "replica")),
    };
    std::iter::once(how).chain(urls::lines(e)).collect::<Vec<_>>().join("\n")
}
