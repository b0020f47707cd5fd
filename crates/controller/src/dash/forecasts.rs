//! When what waits will start, what keeps it and what would start it sooner: worked out while somebody looks, one
//! thing after the other, seldom enough that all of it takes no more than a small part of one core.
//!
//! Who opens the page of a task that nobody has asked about is answered at once, as `tutti why` is.

use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tutti_model::{Forecast, Holder, KeptFor, TaskId, Verdict};

use crate::api::App;
use crate::clock::now;
use crate::lock::lock;

/// It rests so many times as long as it worked, whatever on: less than what the pages take.
const REST: u32 = 80;
const EVERY: Duration = Duration::from_secs(5);
const ADVICE_EVERY: Duration = Duration::from_secs(30);
/// Tasks whose advice is kept; beyond it the one goes that nobody has asked about for longest.
const ADVISED_MAX: usize = 200;
/// What nobody has asked for since then is not looked at.
const WANTED_FOR: Duration = Duration::from_secs(60);
/// What a task waits for may change from one moment to the next; it is not looked at anew more often than this.
const ANEW: Duration = Duration::from_secs(5);

pub type Known = Arc<BTreeMap<TaskId, Forecast>>;

#[derive(Default)]
pub struct Forecasts {
    inner: Mutex<Inner>,
    /// Whoever looks at a task for somebody who waits for it: one at a time.
    at_once: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Inner {
    known: Known,
    turn: Turn,
    advised: BTreeMap<TaskId, Advised>,
    /// Somebody is at work, or rests from it.
    works: bool,
}

/// What is known of a task that waits, beside when it starts.
#[derive(Clone, Default)]
pub struct WaitingTask {
    /// Tasks before it.
    pub ahead: u64,
    /// What would start it sooner.
    pub advice: Vec<String>,
    /// Who holds what it needs.
    pub holders: Vec<Holder>,
    /// For whom what is free is kept.
    pub kept: Vec<KeptFor>,
    /// As it was then; [`Forecasts::known`] may know it better.
    pub forecast: Option<Forecast>,
}

/// What sort of reason it waits for.
type Reason = Discriminant<Verdict>;

#[derive(Default)]
struct Advised {
    known: WaitingTask,
    turn: Turn,
    /// What it waited for when it was last looked at.
    reason: Option<Reason>,
}

impl Advised {
    /// Nothing is known of it that is true of what it waits for now.
    fn is_unknown(&self, reason: Reason, now: Instant) -> bool {
        let long_ago = self.turn.begun.is_none_or(|at| now.duration_since(at) >= ANEW);
        self.reason != Some(reason) && long_ago
    }
}

/// When somebody last asked for something, and when it was last looked at.
#[derive(Clone, Copy, Default)]
struct Turn {
    asked: Option<Instant>,
    begun: Option<Instant>,
}

impl Turn {
    fn is_due(&self, every: Duration, now: Instant) -> bool {
        let wanted = self.asked.is_some_and(|at| now.duration_since(at) < WANTED_FOR);
        wanted && self.begun.is_none_or(|at| now.duration_since(at) >= every)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// When each of them will start.
    All,
    /// What would start this one sooner.
    One(TaskId),
}

impl Forecasts {
    /// What is known; a new look is begun if that is old.
    pub fn known(&self, app: &Arc<App>) -> Known {
        let mut inner = lock(&self.inner);
        inner.turn.asked = Some(Instant::now());
        let (known, begins) = (Arc::clone(&inner.known), inner.begins(Instant::now()));
        drop(inner);
        begin(app, begins);
        known
    }

    /// What keeps this one. Who is the first to ask waits so long for it; later, a new look is begun if what is
    /// known is old.
    pub async fn waiting(
        &self,
        app: &Arc<App>,
        task: TaskId,
        verdict: &Verdict,
        patience: Duration,
    ) -> WaitingTask {
        let reason = discriminant(verdict);
        if lock(&self.inner).ask(task, Instant::now()).is_unknown(reason, Instant::now()) {
            // Nobody waits for longer, but it is worked out, and shown when the page is next looked at.
            let _ = tokio::time::timeout(patience, self.look_at_once(app, task, reason)).await;
        }
        let mut inner = lock(&self.inner);
        let known = inner.ask(task, Instant::now()).known.clone();
        let begins = inner.begins(Instant::now());
        drop(inner);
        begin(app, begins);
        known
    }

    async fn look_at_once(&self, app: &Arc<App>, task: TaskId, reason: Reason) {
        let turn = Arc::clone(&self.at_once).lock_owned().await;
        if !lock(&self.inner).begin_at_once(task, reason, Instant::now()) {
            return;
        }
        let app = Arc::clone(app);
        let look = move || {
            let _turn = turn;
            advise(&app, task);
        };
        if let Err(error) = tokio::task::spawn_blocking(look).await {
            tracing::warn!(%error, %task, "an explanation broke off");
        }
    }
}

impl Inner {
    fn ask(&mut self, task: TaskId, now: Instant) -> &Advised {
        if self.advised.len() >= ADVISED_MAX && !self.advised.contains_key(&task) {
            let asked = |(_, advised): &(&TaskId, &Advised)| advised.turn.asked;
            if let Some(oldest) = self.advised.iter().min_by_key(asked).map(|(id, _)| *id) {
                self.advised.remove(&oldest);
            }
        }
        let advised = self.advised.entry(task).or_default();
        advised.turn.asked = Some(now);
        advised
    }

    /// False if somebody else has meanwhile.
    fn begin_at_once(&mut self, task: TaskId, reason: Reason, now: Instant) -> bool {
        let advised = self.advised.entry(task).or_default();
        let begins = advised.is_unknown(reason, now);
        if begins {
            advised.turn.begun = Some(now);
            advised.reason = Some(reason);
        }
        begins
    }

    /// Whether somebody has to go to work who has not yet.
    fn begins(&mut self, now: Instant) -> bool {
        let begins = !self.works && self.due(now).is_some();
        self.works |= begins;
        begins
    }

    /// What has not been looked at for longest. Tasks are looked at at once for the first time, and then here.
    fn due(&self, now: Instant) -> Option<Work> {
        let all = (self.turn, EVERY, Work::All);
        let seen = self.advised.iter().filter(|(_, advised)| advised.turn.begun.is_some());
        let one =
            |(task, advised): (&TaskId, &Advised)| (advised.turn, ADVICE_EVERY, Work::One(*task));
        let any = std::iter::once(all).chain(seen.map(one));
        let due = any.filter(|(turn, every, _)| turn.is_due(*every, now));
        due.min_by_key(|(turn, ..)| turn.begun).map(|(.., work)| work)
    }

    fn next(&mut self, now: Instant) -> Option<Work> {
        let work = self.due(now)?;
        match work {
            Work::All => self.turn.begun = Some(now),
            Work::One(task) => self.advised.entry(task).or_default().turn.begun = Some(now),
        }
        Some(work)
    }
}

/// Whoever works. When that ends, in whatever way, another may begin; who asks in that very moment
/// begins nothing, but pages ask again and again.
struct Worker(Arc<App>);

impl Worker {
    fn next(&self) -> Option<Work> {
        lock(&self.0.dash.forecasts.inner).next(Instant::now())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        lock(&self.0.dash.forecasts.inner).works = false;
    }
}

/// Not under the lock: a runtime that ends drops the worker at once.
fn begin(app: &Arc<App>, begins: bool) {
    if begins {
        tokio::spawn(work(Worker(Arc::clone(app))));
    }
}

/// Works until nothing is due.
async fn work(worker: Worker) {
    while let Some(next) = worker.next() {
        let (app, began) = (Arc::clone(&worker.0), Instant::now());
        if let Err(error) = tokio::task::spawn_blocking(move || look(&app, next)).await {
            // Others go on, and this one comes again when it is its turn.
            tracing::warn!(%error, work = ?next, "a forecast broke off");
        }
        tokio::time::sleep(began.elapsed().saturating_mul(REST)).await;
    }
}

/// At a copy of the state, so that nobody waits for the lock meanwhile.
fn look(app: &App, work: Work) {
    match work {
        Work::All => forecast(app),
        Work::One(task) => advise(app, task),
    }
}

fn forecast(app: &App) {
    // Else the controller stops.
    let Ok(state) = app.core.peek(|world| world.engine.state().clone()) else { return };
    let found = tutti_sched::forecasts(&state, &state.policy, now());
    lock(&app.dash.forecasts.inner).known = Arc::new(found);
}

fn advise(app: &App, task: TaskId) {
    let seen = app.core.peek(|world| (world.engine.state().clone(), world.engine.plan().clone()));
    let Ok((state, plan)) = seen else { return };
    let found = tutti_sched::explain(&state, &plan, &state.policy, task, now());
    let known = found.map(|found| WaitingTask {
        ahead: found.ahead,
        holders: found.holders_in_its_way().to_vec(),
        advice: found.advice,
        kept: found.kept,
        forecast: found.forecast,
    });
    if let Some(advised) = lock(&app.dash.forecasts.inner).advised.get_mut(&task) {
        advised.known = known.unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::JobId;

    fn task(n: u64) -> TaskId {
        TaskId::single(JobId(n))
    }

    fn held() -> Reason {
        discriminant(&Verdict::Held { suspended: None })
    }

    #[test]
    fn what_was_not_looked_at_for_longest_comes_first() {
        let (mut inner, start) = (Inner::default(), Instant::now());
        let at = |secs: u64| start + Duration::from_secs(secs);
        assert_eq!(inner.next(at(0)), None, "nobody has asked");
        inner.turn.asked = Some(at(0));
        for (secs, n) in [(0, 2), (1, 1)] {
            inner.ask(task(n), at(secs));
            assert_eq!(inner.due(at(secs)), Some(Work::All), "tasks have had no look yet");
            assert!(inner.begin_at_once(task(n), held(), at(secs)));
        }
        assert!(inner.begins(at(2)) && !inner.begins(at(2)), "one at a time");
        assert_eq!([inner.next(at(2)), inner.next(at(3))], [Some(Work::All), None]);
        let one = |n| Some(Work::One(task(n)));
        let order: Vec<Option<Work>> = (31..35).map(|secs| inner.next(at(secs))).collect();
        assert_eq!(order, [one(2), one(1), Some(Work::All), None]);
        assert_eq!(inner.next(at(100)), None, "nobody has asked for long");
    }

    #[test]
    fn what_nobody_has_asked_about_is_looked_at_at_once() {
        let (mut inner, start) = (Inner::default(), Instant::now());
        let at = |secs: u64| start + Duration::from_secs(secs);
        let held = held();
        let behind = discriminant(&Verdict::Behind { job: JobId(1) });
        assert!(inner.ask(task(7), at(0)).is_unknown(held, at(0)));
        assert!(inner.begin_at_once(task(7), held, at(0)));
        assert!(!inner.begin_at_once(task(7), held, at(0)), "somebody else does");
        assert!(!inner.ask(task(7), at(60)).is_unknown(held, at(60)), "it has its turn");
        assert!(!inner.begin_at_once(task(7), behind, at(4)), "not again and again");
        assert!(inner.begin_at_once(task(7), behind, at(5)), "what was known is of something else");
    }

    #[test]
    fn one_too_many_makes_one_go_and_leaves_the_others_their_turn() {
        let (mut inner, start) = (Inner::default(), Instant::now());
        for n in 0..ADVISED_MAX as u64 {
            inner.ask(task(n), start + Duration::from_millis(n));
        }
        let later = start + Duration::from_secs(1);
        assert!(inner.begin_at_once(task(0), held(), later));
        inner.ask(task(0), later);
        inner.ask(task(9999), later);
        assert_eq!(inner.advised.len(), ADVISED_MAX);
        assert!(!inner.advised.contains_key(&task(1)), "nobody has asked about it for longest");
        assert_eq!(inner.advised[&task(0)].turn.begun, Some(later));
    }
}
