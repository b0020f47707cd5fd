//! One method for every route of [`crate::api`].

mod endpoints;

use std::fmt::Display;
use std::io::Read;
use std::time::Duration;

use http::Method;
use http::header::ETAG;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tutti_model::{
    ActiveReport, BurnInFigures, Explanation, GpuBenchFigures, JobId, JobUpdate, Policy,
    PolicyNotes, Priority, Rank, Report, ReservationRow, Seq, TaskId, TeamShare,
};

use super::{Ask, Client, ClientError, Events, ExecEvents, Logs, new_key};
use crate::api::*;
use crate::tls::WrongCa;

/// How often a change of the policy is tried before somebody is told that others are faster.
const CHANGES_TRIED: usize = 10;

/// GPUs are made to compute; the controller waits that long for the agent.
const CHECK_TAKES: Duration = Duration::from_secs(115);
/// Files of many days are read.
const ARCHIVE_TAKES: Duration = Duration::from_secs(60);

/// Part of a path, whatever is in it.
fn part(text: &str) -> impl Display + '_ {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

fn query<Q: Serialize>(path: &str, query: &Q) -> Result<String, ClientError> {
    let text = serde_urlencoded::to_string(query)?;
    Ok(if text.is_empty() { path.to_owned() } else { format!("{path}?{text}") })
}

impl Client {
    pub fn openapi(&self) -> Result<serde_json::Value, ClientError> {
        self.get("/openapi.json")
    }

    pub fn cluster_info(&self) -> Result<ClusterInfo, ClientError> {
        self.get("/cluster")
    }

    /// Asks again when nobody answered; the key (a new one if `job` has none) makes that safe.
    pub fn submit(&self, job: &Submit) -> Result<Submitted, ClientError> {
        let key = match &job.key {
            Some(key) => key.clone(),
            None => new_key()?,
        };
        let ask = Ask::json(Method::POST, "/jobs", job)?.key(&key);
        self.patiently(|| self.answer(&ask))
    }

    /// Many in one request. Each gets a key if it has none, so this too may be asked again.
    pub fn submit_batch(&self, mut jobs: Vec<Submit>) -> Result<Vec<SubmitResult>, ClientError> {
        for job in &mut jobs {
            if job.key.is_none() {
                job.key = Some(new_key()?);
            }
        }
        let ask = Ask::json(Method::POST, "/jobs:batch", &jobs)?;
        self.patiently(|| self.answer(&ask))
    }

    pub fn jobs(&self, wanted: &JobQuery) -> Result<JobPage, ClientError> {
        let ask = Ask::plain(Method::GET, &query("/jobs", wanted)?);
        let in_archive = wanted.since.is_some() || wanted.until.is_some();
        self.answer(&ask.takes(if in_archive { ARCHIVE_TAKES } else { Duration::ZERO }))
    }

    pub fn job(&self, id: TaskId) -> Result<JobDetail, ClientError> {
        self.get(&format!("/jobs/{id}"))
    }

    pub fn why(&self, id: TaskId) -> Result<Explanation, ClientError> {
        self.get(&format!("/jobs/{id}/why"))
    }

    /// How far it is, by rank and over time.
    pub fn progress(&self, id: TaskId) -> Result<ProgressDetail, ClientError> {
        self.get(&format!("/jobs/{id}/progress"))
    }

    /// Waits until the job has ended, but no longer than `seconds` (at most 60).
    pub fn wait(&self, id: TaskId, seconds: u32) -> Result<JobRow, ClientError> {
        let seconds = seconds.min(60);
        let ask = Ask::plain(Method::GET, &format!("/jobs/{id}/wait?seconds={seconds}"));
        self.answer(&ask.takes(Duration::from_secs(seconds.into())))
    }

    pub fn cancel(&self, id: TaskId) -> Result<Changed, ClientError> {
        self.post(&format!("/jobs/{id}/cancel"))
    }

    /// Without time to save.
    pub fn kill(&self, id: TaskId) -> Result<Changed, ClientError> {
        self.post(&format!("/jobs/{id}/kill"))
    }

    /// To its processes, and nothing else. Says how many parts got it.
    pub fn signal(&self, id: TaskId, signal: &str) -> Result<Changed, ClientError> {
        let signal = SendSignal { signal: signal.to_owned() };
        self.answer(&Ask::json(Method::POST, &format!("/jobs/{id}/signal"), &signal)?)
    }

    pub fn update(&self, id: JobId, update: &JobUpdate) -> Result<Changed, ClientError> {
        self.answer(&Ask::json(Method::POST, &format!("/jobs/{id}/update"), update)?)
    }

    pub fn hold(&self, id: JobId) -> Result<Changed, ClientError> {
        self.post(&format!("/jobs/{id}/hold"))
    }

    pub fn release(&self, id: JobId) -> Result<Changed, ClientError> {
        self.post(&format!("/jobs/{id}/release"))
    }

    pub fn suspend(&self, id: TaskId) -> Result<Changed, ClientError> {
        self.post(&format!("/jobs/{id}/suspend"))
    }

    pub fn resume_job(&self, id: TaskId) -> Result<Changed, ClientError> {
        self.post(&format!("/jobs/{id}/resume"))
    }

    pub fn priority(&self, id: JobId, priority: Priority) -> Result<Changed, ClientError> {
        let path = format!("/jobs/{id}/priority");
        self.answer(&Ask::json(Method::POST, &path, &SetPriority { priority })?)
    }

    /// What this task did up to now is safe: nothing from before is lost if it is stopped.
    pub fn saved(&self, id: TaskId) -> Result<Changed, ClientError> {
        self.post(&format!("/jobs/{id}/saved"))
    }

    /// A restart goes on from it, unless something newer is known.
    pub fn register(&self, id: TaskId, step: u64, path: String) -> Result<Changed, ClientError> {
        let route = format!("/jobs/{id}/checkpoints");
        self.answer(&Ask::json(Method::POST, &route, &Register { step, path })?)
    }

    /// Ends after [`LogEvent::End`].
    pub fn logs(&self, id: TaskId, wanted: &LogQuery) -> Result<Logs, ClientError> {
        let path = query(&format!("/jobs/{id}/logs"), wanted)?;
        self.events_of(Ask::plain(Method::GET, &path), |e| matches!(e, LogEvent::End { .. }))
    }

    /// Sends all of `input` as it comes. Its end closes the rank's standard input unless `keep`.
    pub fn put_stdin(
        &self,
        id: TaskId,
        rank: Rank,
        keep: bool,
        input: impl Read,
    ) -> Result<(), ClientError> {
        self.upload(&format!("/jobs/{id}/stdin?rank={rank}&keep={keep}"), input)
    }

    /// Ends after [`ExecEvent::Exited`] or [`ExecEvent::Failed`].
    pub fn exec(&self, id: TaskId, request: &ExecRequest) -> Result<ExecEvents, ClientError> {
        let ask = Ask::json(Method::POST, &format!("/jobs/{id}/exec"), request)?;
        self.events_of(ask, |e| matches!(e, ExecEvent::Exited { .. } | ExecEvent::Failed { .. }))
    }

    pub fn exec_stdin(&self, session: &str, input: impl Read) -> Result<(), ClientError> {
        self.upload(&format!("/exec/{}/stdin", part(session)), input)
    }

    pub fn nodes(&self) -> Result<Vec<NodeRow>, ClientError> {
        self.get("/nodes")
    }

    /// Of one node, or of all.
    pub fn gpus(&self, node: Option<&str>) -> Result<Vec<GpuRow>, ClientError> {
        self.get(&query("/gpus", &GpuQuery { node: node.map(str::to_owned) })?)
    }

    /// What GPUs do now, for the cluster and for the nodes and jobs that are asked for.
    pub fn load(&self, wanted: &LoadQuery) -> Result<Load, ClientError> {
        self.get(&query("/load", wanted)?)
    }

    pub fn telemetry(&self, wanted: &TelemetryQuery) -> Result<TelemetryCurves, ClientError> {
        self.get(&query("/telemetry", wanted)?)
    }

    pub fn job_telemetry(&self, id: TaskId) -> Result<JobTelemetry, ClientError> {
        self.get(&format!("/jobs/{id}/telemetry"))
    }

    pub fn node(&self, name: &str) -> Result<NodeRow, ClientError> {
        self.get(&format!("/nodes/{}", part(name)))
    }

    /// The same with what it is made of and what it did last.
    pub fn node_detail(&self, name: &str) -> Result<NodeDetail, ClientError> {
        self.get(&format!("/nodes/{}", part(name)))
    }

    pub fn drain(&self, name: &str, reason: &str, evict: bool) -> Result<Changed, ClientError> {
        let path = format!("/nodes/{}/drain", part(name));
        let request = DrainRequest { reason: reason.to_owned(), evict };
        self.answer(&Ask::json(Method::POST, &path, &request)?)
    }

    /// Removes a node from the cluster for good.
    pub fn remove_node(&self, name: &str, force: bool) -> Result<Changed, ClientError> {
        let path = query(&format!("/nodes/{}", part(name)), &RemoveNodeQuery { force })?;
        self.answer(&Ask::plain(Method::DELETE, &path))
    }

    pub fn resume(&self, name: &str) -> Result<Changed, ClientError> {
        self.post(&format!("/nodes/{}/resume", part(name)))
    }

    /// A fire drill.
    pub fn inject(&self, name: &str, request: &InjectRequest) -> Result<Board, ClientError> {
        let path = format!("/nodes/{}/inject", part(name));
        self.answer(&Ask::json(Method::POST, &path, request)?)
    }

    /// Takes findings off a node's board.
    pub fn resolve(&self, name: &str, request: &ResolveRequest) -> Result<Board, ClientError> {
        let path = format!("/nodes/{}/resolve", part(name));
        self.answer(&Ask::json(Method::POST, &path, request)?)
    }

    /// Makes the idle GPUs of a node compute something whose answer is known.
    pub fn check(&self, name: &str) -> Result<ActiveReport, ClientError> {
        let path = format!("/nodes/{}/check", part(name));
        self.answer(&Ask::json(Method::POST, &path, &serde_json::json!({}))?.takes(CHECK_TAKES))
    }

    /// What a node's agent knows of its health.
    pub fn health(&self, name: &str) -> Result<Examination, ClientError> {
        self.get(&format!("/nodes/{}/health", part(name)))
    }

    /// Keeps what was measured with the node.
    pub fn measured(&self, name: &str, figures: &BurnInFigures) -> Result<Changed, ClientError> {
        let path = format!("/nodes/{}/burn-in", part(name));
        self.answer(&Ask::json(Method::PUT, &path, figures)?)
    }

    /// Keeps what its GPUs were measured to do with the node.
    pub fn gpus_measured(
        &self,
        name: &str,
        figures: &GpuBenchFigures,
    ) -> Result<Changed, ClientError> {
        let path = format!("/nodes/{}/gpu-bench", part(name));
        self.answer(&Ask::json(Method::PUT, &path, figures)?)
    }

    pub fn policy(&self) -> Result<Policy, ClientError> {
        self.get("/policy")
    }

    /// Replaces the running policy as a whole, or leaves it as it is and says what is wrong.
    pub fn set_policy(&self, policy: &Policy) -> Result<PolicyReplaced, ClientError> {
        self.answer(&Ask::json(Method::PUT, "/policy", policy)?)
    }

    /// Makes a new policy from the running one. When somebody else changed that meanwhile, their
    /// change is read and `change` is asked again, so that neither is lost. Answers with the policy
    /// before and after, and what is odd about the latter.
    pub fn change_policy(
        &self,
        change: impl Fn(&Policy) -> Policy,
    ) -> Result<(Policy, Policy, PolicyNotes), ClientError> {
        for _ in 1..CHANGES_TRIED {
            match self.try_change_policy(&change) {
                Err(error) if error.is_policy_moved() => tracing::debug!(%error, "asking again"),
                done => return done,
            }
        }
        self.try_change_policy(&change)
    }

    fn try_change_policy(
        &self,
        change: impl Fn(&Policy) -> Policy,
    ) -> Result<(Policy, Policy, PolicyNotes), ClientError> {
        let answer = self.send(&Ask::plain(Method::GET, "/policy"))?;
        let tag = answer.headers().get(ETAG).cloned().ok_or(ClientError::NoTag)?;
        let body = self.whole(answer)?;
        let old: Policy = serde_json::from_slice(&body).map_err(ClientError::Answer)?;
        let new = change(&old);
        let ask = Ask::json(Method::PUT, "/policy", &new)?;
        let done: PolicyReplaced = self.answer(&Ask { if_match: Some(tag), ..ask })?;
        Ok((old, new, done.notes))
    }

    /// What a policy would change, and whom it would stop. Nothing is changed.
    pub fn preview_policy(&self, policy: &Policy) -> Result<PolicyPreview, ClientError> {
        self.answer(&Ask::json(Method::POST, "/policy:preview", policy)?)
    }

    pub fn reservations(&self) -> Result<Vec<ReservationRow>, ClientError> {
        self.get("/reservations")
    }

    pub fn report(&self, wanted: &ReportQuery) -> Result<Report, ClientError> {
        let ask = Ask::plain(Method::GET, &query("/report", wanted)?);
        self.answer(&ask.takes(ARCHIVE_TAKES))
    }

    pub fn job_goodput(&self, id: TaskId) -> Result<JobGoodput, ClientError> {
        self.get(&format!("/jobs/{id}/goodput"))
    }

    pub fn alerts(&self, wanted: &AlertQuery) -> Result<AlertList, ClientError> {
        self.get(&query("/alerts", wanted)?)
    }

    pub fn quota(&self) -> Result<Vec<TeamShare>, ClientError> {
        self.get("/quota")
    }

    /// Records of the engine after `since`, as they happen; never ends by itself. The type is the
    /// engine's, which this crate does not know.
    pub fn events<T: DeserializeOwned>(
        &self,
        since: Option<Seq>,
        job: Option<TaskId>,
    ) -> Result<Events<T>, ClientError> {
        let wanted =
            [since.map(|seq| ("since", seq.to_string())), job.map(|id| ("job", id.to_string()))];
        let wanted: Vec<_> = wanted.into_iter().flatten().collect();
        self.events_of(Ask::plain(Method::GET, &query("/events", &wanted)?), |_| false)
    }

    pub fn tokens(&self) -> Result<Vec<TokenRow>, ClientError> {
        self.get("/tokens")
    }

    pub fn create_token(&self, new: &NewToken) -> Result<CreatedToken, ClientError> {
        self.answer(&Ask::json(Method::POST, "/tokens", new)?)
    }

    pub fn revoke_token(&self, id: &str) -> Result<Changed, ClientError> {
        self.answer(&Ask::plain(Method::DELETE, &format!("/tokens/{}", part(id))))
    }

    /// With a join token. What comes back is of the cluster that the token names, or an error.
    pub fn join(&self, request: &JoinRequest) -> Result<JoinResponse, ClientError> {
        let response: JoinResponse = self.answer(&Ask::json(Method::POST, "/join", request)?)?;
        let ca = crate::pki::certificates(&response.ca, "the CA")?;
        let pin = self.cluster().token.ca;
        if crate::pki::Fingerprint::of(&ca[0]).pin() != pin {
            let endpoint = self.endpoint().authority();
            return Err(ClientError::NotTrusted { endpoint, source: WrongCa { pin } });
        }
        Ok(response)
    }

    pub fn doctor(&self) -> Result<DoctorReport, ClientError> {
        self.get("/doctor")
    }

    pub fn shutdown(&self) -> Result<Changed, ClientError> {
        self.post("/shutdown")
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.answer(&Ask::plain(Method::GET, path))
    }

    fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.answer(&Ask::plain(Method::POST, path))
    }
}
