//! Looks at the cluster every few seconds, asks the rules of `tutti-watch` what is wrong, and tells
//! and acts. Beside the engine: it takes the same commands as everybody, and nothing waits for it.
//!
//! ```text
//!  state, progress ─┐
//!  telemetry ───────┼─► observe ─► Watcher ─┬─► Board ─► api, ps, pages, /metrics
//!  disk, certs ─────┘                       ├─► act: warn a job, Intervene
//!                                           ├─► notify: webhook, programs
//!                                           └─► file: what a new controller goes on with
//! ```

mod act;
mod board;
mod file;
mod notify;
mod observe;

use std::sync::Arc;
use std::time::Duration;

use tutti_model::{Alert, Time};
use tutti_watch::{Change, Watcher};

use crate::api::App;
use crate::audit::Line;
use crate::clock::now;

pub use board::Board;

use file::File;
use notify::{Event, Notifier};

/// Watches until the controller stops.
pub async fn keep_watch(app: Arc<App>) {
    let file = File::new(&app.data_dir);
    let kept = file.load();
    app.alerts.begin(kept.history);
    let mut watcher = Watcher::restore(kept.standing, kept.next);
    let notifier = Notifier::start(&app.data_dir);
    let mut stopping = app.stopping();
    let mut every = Duration::ZERO;
    loop {
        let said_of = observe::said_of(&watcher.standing());
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            // What is said of a job ends with it.
            () = observe::one_is_over(&app, &said_of) => {}
            _ = stopping.wait_for(|s| *s) => return,
        }
        let Ok((policy, seen)) = observe::look(&app, &watcher, now()) else { return };
        let changes = watcher.round(&policy.watch, &seen);
        let standing = watcher.standing();
        if act::act(&app, &changes, &standing).await.is_err() {
            return;
        }
        for change in &changes {
            told(&app, change, seen.now);
            let event = match change {
                Change::Began(alert) => Event::began(alert),
                Change::Ended(alert) => Event::ended(alert),
            };
            notifier.tell(&policy.watch.notify, &event);
        }
        show(&app, &watcher, &changes);
        if !changes.is_empty() {
            file.save(standing, watcher.next(), app.alerts.history());
        }
        every = Duration::from_millis(policy.watch.every().0);
    }
}

fn show(app: &App, watcher: &Watcher, changes: &[Change]) {
    let ended = changes.iter().filter_map(|change| match change {
        Change::Ended(alert) => Some(alert.clone()),
        Change::Began(_) => None,
    });
    let alerts = watcher.standing().iter().map(|standing| standing.alert.clone()).collect();
    app.alerts.show(alerts, ended);
}

/// One look at a simulated cluster: what is wrong is shown, and nobody is told or stopped.
pub fn look_on(app: &App, watcher: &mut Watcher, now: Time) {
    let Ok((policy, seen)) = observe::look(app, watcher, now) else { return };
    let changes = watcher.round(&policy.watch, &seen);
    show(app, watcher, &changes);
}

/// In the log and in the audit log.
fn told(app: &App, change: &Change, at: Time) {
    let (word, alert) = match change {
        Change::Began(alert) => ("alert", alert),
        Change::Ended(alert) => ("alert ended", alert),
    };
    let Alert { rule, subject, text, action, .. } = alert;
    tracing::info!(rule = rule.as_str(), %subject, action = action.as_str(), "{word}: {text}");
    app.audit.note(Line {
        time: at,
        user: Some(act::BY.to_owned()),
        token: None,
        peer: None,
        uid: None,
        action: format!("{word} {}", rule.as_str()),
        target: format!("{subject}: {text}"),
        result: "ok".to_owned(),
    });
}
