//! What every scene needs: submit, wait while saying what happens, read logs, check.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tutti_model::{GpuRequest, JobSpec, JobState, TaskId};
use tutti_wire::api::{JobDetail, LogEvent, LogQuery, Submit};
use tutti_wire::client::Client;

use super::house::House;
use super::training;
use super::view::View;
use crate::fail::Fail;
use crate::local::{RunningCluster, StopSignals};
use crate::session;

/// Nothing in the demo takes this long, even on a busy machine.
const SCENE_LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub struct Stage<'a> {
    pub cluster: &'a mut RunningCluster,
    pub view: &'a View,
    stop: &'a StopSignals,
    /// On whose behalf jobs are submitted.
    user: Option<String>,
    pub program: String,
    /// The node whose death is part of the show.
    pub broken: Option<String>,
    /// A directory that every simulated node shares, as real ones share a file system.
    pub shared: PathBuf,
}

impl<'a> Stage<'a> {
    pub fn new(
        house: &'a mut House,
        view: &'a View,
        stop: &'a StopSignals,
    ) -> Result<Stage<'a>, Fail> {
        let shared = house.dir().join("shared");
        std::fs::create_dir(&shared)
            .map_err(|e| Fail::new(format!("can't make {}: {e}", shared.display())))?;
        let program = std::env::current_exe()
            .map_err(|e| Fail::new(format!("can't tell where this program is: {e}")))?;
        let program = program
            .to_str()
            .ok_or_else(|| Fail::new(format!("{} is not UTF-8", program.display())))?
            .to_owned();
        let cluster = house.cluster()?;
        let user = session::on_behalf(&cluster.client);
        Ok(Stage { cluster, view, stop, user, program, broken: None, shared })
    }

    pub fn user(&self) -> Option<String> {
        self.user.clone()
    }

    pub fn client(&self) -> &Client {
        &self.cluster.client
    }

    /// A line for the shell, in the shared directory, on one GPU.
    pub fn shell(&self, name: &str, line: &str) -> JobSpec {
        let mut spec = JobSpec::shell(line);
        spec.name = Some(name.to_owned());
        spec.gpus_per_node = Some(GpuRequest { model: None, count: 1 });
        spec.workdir = self.shared.to_str().map(str::to_owned);
        spec
    }

    pub fn submit(&self, spec: JobSpec) -> Result<TaskId, Fail> {
        let submit = Submit { spec, user: self.user.clone(), key: None };
        Ok(self.client().submit(&submit)?.id)
    }

    /// Looks again and again until there is something. `waited_for` names it if it never comes.
    pub fn until<T>(
        &self,
        waited_for: &str,
        mut look: impl FnMut() -> Result<Option<T>, Fail>,
    ) -> Result<T, Fail> {
        let deadline = Instant::now() + SCENE_LIMIT;
        loop {
            if self.stop.asked() {
                return Err(Fail::new("interrupted").exit(130));
            }
            let looked = look();
            if let Some(death) = self.cluster.died(self.broken.as_deref()) {
                return Err(death);
            }
            if let Some(found) = looked? {
                return Ok(found);
            }
            if Instant::now() > deadline {
                let limit = SCENE_LIMIT.as_secs();
                return Err(Fail::new(format!("waited {limit} s in vain for {waited_for}")));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The job once it has ended; `tell` is shown it on the way there.
    pub fn ended(
        &self,
        id: TaskId,
        mut tell: impl FnMut(&JobDetail) -> Result<(), Fail>,
    ) -> Result<JobDetail, Fail> {
        let mut last = None;
        let waited = self.until(&format!("the end of job {id}"), || {
            let job = self.client().job(id)?;
            if job.row.state.is_final() {
                return Ok(Some(job));
            }
            tell(&job)?;
            last = Some(format!("the job is {} {}", job.row.state.as_str(), job.row.note));
            Ok(None)
        });
        waited.map_err(|fail| match last {
            Some(last) if fail.hint.is_none() => fail.hint(last.trim_end()),
            _ => fail,
        })
    }

    /// The job once it has completed with exit code 0.
    pub fn completed(
        &self,
        id: TaskId,
        tell: impl FnMut(&JobDetail) -> Result<(), Fail>,
    ) -> Result<JobDetail, Fail> {
        let job = self.ended(id, tell)?;
        if job.row.state == JobState::Completed && job.row.exit_code == Some(0) {
            return Ok(job);
        }
        let (row, code) = (&job.row, exit_text(job.row.exit_code));
        let fail = Fail::new(format!(
            "job {id} ({}) {} with exit code {code}: {}",
            row.name,
            row.state.as_str(),
            row.note
        ));
        let said = self.log(id, &LogQuery { tail: Some(1), ..LogQuery::default() })?;
        let last = said.into_iter().map(|(rank, line)| format!("rank {rank} said: {line}")).next();
        Err(last.into_iter().fold(fail, Fail::hint))
    }

    /// The lines of a job's log so far, each with its rank.
    pub fn log(&self, id: TaskId, query: &LogQuery) -> Result<Vec<(u32, String)>, Fail> {
        let mut lines = Vec::new();
        for event in self.client().logs(id, query)? {
            if let LogEvent::Line { rank, text, partial: false, .. } = event? {
                lines.push((rank, text));
            }
        }
        Ok(lines)
    }

    /// Shows how far the training is.
    pub fn tell_progress(&self, job: &JobDetail) -> Result<(), Fail> {
        if job.row.state == JobState::Running
            && let Some((step, loss)) = training::last_step(self, job.row.id)?
        {
            self.view.now(&format!("{} ranks: step {step}, loss {loss:.3}", ranks(job)));
        }
        Ok(())
    }
}

pub fn ranks(job: &JobDetail) -> u32 {
    job.parts.iter().map(|p| p.ranks).sum()
}

pub fn exit_text(code: Option<i32>) -> String {
    code.map_or_else(|| "none".to_owned(), |c| c.to_string())
}

/// What the demo shows must be true.
pub fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Fail> {
    if holds { Ok(()) } else { Err(Fail::new(otherwise())) }
}
