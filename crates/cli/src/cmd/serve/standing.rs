//! How far an endpoint is on its way to a revision. Pure: what the controller says goes in.

use tutti_model::{JobState, ReplicaPhase, RolloutStage, Time};
use tutti_wire::api::{EndpointDetail, EndpointState, ReplicaRow};

use crate::show::{endpoints, harmless, time};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Coming,
    /// As many replicas of the revision answer as should.
    Answers,
    /// Nobody asks, so there is no replica; the first request starts one.
    Asleep,
    /// It does not come to that by itself, and why.
    Failed(String),
}

pub fn of(e: &EndpointDetail, revision: u32) -> Standing {
    let row = &e.row;
    if row.state == EndpointState::Stopping {
        return Standing::Failed(format!("{} is being stopped", row.name));
    }
    let taken_back = e.revisions.iter().find(|r| r.number == revision);
    if let Some(why) = taken_back.and_then(|r| r.taken_back.as_ref()) {
        return Standing::Failed(format!("revision {revision} was taken back: {why}"));
    }
    let serves = match &row.rollout {
        Some(r) if r.to == revision => match r.stage {
            RolloutStage::Back => {
                return Standing::Failed(format!("revision {revision} is taken back"));
            }
            RolloutStage::Watching { .. } => true,
            RolloutStage::Canary { .. } | RolloutStage::Rolling => false,
        },
        // The way back to it.
        Some(r) if r.from == revision && r.stage == RolloutStage::Back => false,
        Some(r) => {
            let other = if r.stage == RolloutStage::Back { r.from } else { r.to };
            return Standing::Failed(format!("revision {other} is on its way instead"));
        }
        None if row.revision != revision => {
            return Standing::Failed(format!("revision {} is served instead", row.revision));
        }
        None => true,
    };
    match row.state {
        EndpointState::Failing => Standing::Failed(reason(e)),
        EndpointState::Ready if serves => Standing::Answers,
        EndpointState::Asleep if serves => Standing::Asleep,
        _ => Standing::Coming,
    }
}

fn reason(e: &EndpointDetail) -> String {
    let last = e.chronicle.last().map(|h| h.text.clone());
    let told = if e.why.is_empty() { last } else { Some(e.why.join("; ")) };
    told.unwrap_or_else(|| "its replicas fail one after another".to_owned())
}

/// What a replica does: the first part changes when something happens, the second with the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub what: String,
    pub for_how_long: Option<String>,
}

impl Told {
    pub fn line(&self) -> String {
        match &self.for_how_long {
            Some(span) => format!("{} for {span}", self.what),
            None => self.what.clone(),
        }
    }
}

/// `waits_for` is the scheduler's verdict where the row does not have it; `runs_since` when it was first
/// seen to run, for the row counts from its submission.
pub fn replica(
    r: &ReplicaRow,
    waits_for: Option<&str>,
    runs_since: Option<Time>,
    now: Time,
) -> Told {
    let on = match r.nodes.is_empty() {
        true => String::new(),
        false => format!(" on {}", r.nodes.join(", ")),
    };
    let why = r.why.as_deref().map(harmless).map_or_else(String::new, |w| format!(" ({w})"));
    let since = || Some(time::short(now.since(runs_since.unwrap_or(r.since))));
    let (what, for_how_long) = match (r.phase, r.state) {
        (ReplicaPhase::Ready, _) => (format!("ready{on}"), None),
        (ReplicaPhase::Draining { .. }, _) => ("finishes what it has".to_owned(), None),
        (ReplicaPhase::Coming, JobState::Pending) => {
            let verdict = r.why.as_deref().or(waits_for).filter(|w| !w.is_empty());
            let verdict = verdict.map_or_else(|| "for GPUs".to_owned(), harmless);
            (format!("waits: {verdict}"), None)
        }
        (ReplicaPhase::Coming, JobState::Starting) => (format!("starting{on}"), None),
        (ReplicaPhase::Coming, JobState::Running) => (format!("loading{on}{why}"), since()),
        (ReplicaPhase::Coming, state) => (format!("{}{why}", state.as_str()), None),
    };
    Told { what, for_how_long }
}

/// What is over the replicas: how many answer, and where a rollout is.
pub fn head(e: &EndpointDetail) -> String {
    let row = &e.row;
    let rollout = row.rollout.as_ref().map(endpoints::rollout);
    let rollout = rollout.map_or_else(String::new, |r| format!(", {r}"));
    format!("{} of {} ready{rollout}", row.ready, row.want)
}

#[cfg(test)]
mod tests {
    use tutti_model::Rollout;

    use super::*;
    use crate::show::endpoint::tests::{endpoint, replica as row};

    fn rolling(from: u32, to: u32, stage: RolloutStage) -> EndpointDetail {
        let mut e = endpoint(EndpointState::Ready, Vec::new());
        e.row.revision = from;
        e.row.rollout = Some(Rollout { from, to, began_at: Time(0), stage });
        e
    }

    #[test]
    fn the_state_decides_where_no_rollout_is_under_way() {
        let at = |state| of(&endpoint(state, Vec::new()), 3);
        assert_eq!(at(EndpointState::Ready), Standing::Answers);
        assert_eq!(at(EndpointState::Asleep), Standing::Asleep);
        assert_eq!(at(EndpointState::Partial), Standing::Coming);
        assert_eq!(at(EndpointState::Starting), Standing::Coming);
        assert!(matches!(at(EndpointState::Stopping), Standing::Failed(_)));
        let mut failing = endpoint(EndpointState::Failing, Vec::new());
        failing.why = vec!["3 replicas failed: exit code 1".into()];
        assert_eq!(of(&failing, 3), Standing::Failed("3 replicas failed: exit code 1".into()));
    }

    #[test]
    fn a_rollout_is_over_when_all_replicas_are_new() {
        let canary = RolloutStage::Canary { percent: 10, since: None };
        assert_eq!(of(&rolling(3, 4, canary), 4), Standing::Coming);
        assert_eq!(of(&rolling(3, 4, RolloutStage::Rolling), 4), Standing::Coming);
        let watching = RolloutStage::Watching { until: Time(9) };
        assert_eq!(of(&rolling(3, 4, watching), 4), Standing::Answers);
        let Standing::Failed(why) = of(&rolling(3, 4, RolloutStage::Back), 4) else { panic!() };
        assert_eq!(why, "revision 4 is taken back");
        assert_eq!(of(&rolling(3, 4, RolloutStage::Back), 3), Standing::Coming);
    }

    #[test]
    fn somebody_elses_revision_is_not_waited_for() {
        let Standing::Failed(why) = of(&rolling(3, 5, RolloutStage::Rolling), 4) else { panic!() };
        assert_eq!(why, "revision 5 is on its way instead");
        let Standing::Failed(why) = of(&endpoint(EndpointState::Ready, Vec::new()), 2) else {
            panic!()
        };
        assert_eq!(why, "revision 3 is served instead");
        let mut back = endpoint(EndpointState::Ready, Vec::new());
        back.revisions[0].taken_back = Some("9% of its requests failed".into());
        let Standing::Failed(why) = of(&back, 3) else { panic!() };
        assert_eq!(why, "revision 3 was taken back: 9% of its requests failed");
    }

    #[test]
    fn replicas_say_what_they_wait_for_and_how_long_they_load() {
        let told = |phase, state, why: Option<&str>, verdict| {
            let mut r = row(7, phase, state);
            r.why = why.map(str::to_owned);
            replica(&r, verdict, Some(Time(2_000)), Time(12_000)).line()
        };
        let coming = ReplicaPhase::Coming;
        let busy = "needs 4 free GPUs";
        assert_eq!(told(coming, JobState::Pending, None, Some(busy)), format!("waits: {busy}"));
        assert_eq!(told(coming, JobState::Pending, Some(busy), None), format!("waits: {busy}"));
        assert_eq!(told(coming, JobState::Pending, None, None), "waits: for GPUs");
        assert_eq!(told(coming, JobState::Starting, None, None), "starting on n7");
        let refused = Some("/health: connection refused");
        assert_eq!(
            told(coming, JobState::Running, refused, None),
            "loading on n7 (/health: connection refused) for 10s"
        );
        assert_eq!(told(ReplicaPhase::Ready, JobState::Running, None, None), "ready on n7");
    }
}
