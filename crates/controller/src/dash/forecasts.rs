//! When what waits will start, and what would start it sooner: worked out by threads of their own
//! while somebody looks, seldom enough that it takes no more than a small part of one core.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tutti_model::{Forecast, TaskId};

use crate::api::App;
use crate::clock::now;
use crate::lock::lock;

const EVERY: Duration = Duration::from_secs(5);
/// It rests so many times as long as it worked.
const REST: u32 = 20;

pub type Known = Arc<BTreeMap<TaskId, Forecast>>;

/// Tasks whose advice is kept; beyond it all are looked at anew.
const ADVISED_MAX: usize = 200;
const ADVICE_EVERY: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct Forecasts {
    inner: Mutex<Inner>,
    advice: Mutex<BTreeMap<TaskId, Advised>>,
}

/// How many are before a task, and what would start it sooner.
#[derive(Clone, Default)]
struct Advised {
    ahead: u64,
    advice: Vec<String>,
    works: bool,
    not_before: Option<Instant>,
}

#[derive(Default)]
struct Inner {
    known: Known,
    works: bool,
    not_before: Option<Instant>,
}

impl Forecasts {
    /// What is known; a new look is begun if that is old.
    pub fn known(&self, app: &Arc<App>) -> Known {
        let mut inner = self.lock();
        if !inner.works && inner.not_before.is_none_or(|at| at <= Instant::now()) {
            inner.works = true;
            let app = Arc::clone(app);
            tokio::task::spawn_blocking(move || look(&app));
        }
        Arc::clone(&inner.known)
    }

    /// How many tasks are before this one and what would start it sooner, as far as is known; a new
    /// look is begun if that is old.
    pub fn advice(&self, app: &Arc<App>, task: TaskId) -> (u64, Vec<String>) {
        let mut all = lock(&self.advice);
        if all.len() >= ADVISED_MAX && !all.contains_key(&task) {
            all.clear();
        }
        let known = all.entry(task).or_default();
        if !known.works && known.not_before.is_none_or(|at| at <= Instant::now()) {
            known.works = true;
            let app = Arc::clone(app);
            tokio::task::spawn_blocking(move || advise(&app, task));
        }
        (known.ahead, known.advice.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

fn advise(app: &App, task: TaskId) {
    let began = Instant::now();
    let seen = app.core.peek(|world| (world.engine.state().clone(), world.engine.plan().clone()));
    let found = seen
        .ok()
        .and_then(|(state, plan)| tutti_sched::explain(&state, &plan, &state.policy, task, now()));
    let not_before = Some(Instant::now() + ADVICE_EVERY.max(began.elapsed() * REST));
    let (ahead, advice) = found.map(|found| (found.ahead, found.advice)).unwrap_or_default();
    lock(&app.dash.forecasts.advice)
        .insert(task, Advised { ahead, advice, works: false, not_before });
}

fn look(app: &App) {
    let began = Instant::now();
    // A copy, so that nobody waits for the lock meanwhile.
    let state = app.core.peek(|world| world.engine.state().clone());
    let found = state.map(|state| tutti_sched::forecasts(&state, &state.policy, now()));
    let took = began.elapsed();
    let mut inner = app.dash.forecasts.lock();
    if let Ok(found) = found {
        inner.known = Arc::new(found);
    }
    inner.works = false;
    inner.not_before = Some(Instant::now() + EVERY.max(took * REST));
}
