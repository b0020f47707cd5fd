//! What people see while an endpoint comes up: on a terminal a live line for each replica, elsewhere a
//! line when something changes.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tutti_model::JobId;

use super::standing::Told;
use crate::show::harmless;
use crate::terminal;

/// More would push the first ones off the screen.
const LINES_MAX: usize = 12;

pub struct View {
    /// What was said of each, so that it is not said again.
    told: BTreeMap<JobId, String>,
    head: String,
    live: Option<Live>,
}

struct Live {
    bars: MultiProgress,
    head: ProgressBar,
    replicas: BTreeMap<JobId, ProgressBar>,
}

impl View {
    pub fn new() -> View {
        let live = terminal::stderr_is_live().then(|| {
            let bars = MultiProgress::new();
            let head = bars.add(spinner());
            Live { bars, head, replicas: BTreeMap::new() }
        });
        View { told: BTreeMap::new(), head: String::new(), live }
    }

    pub fn show(&mut self, head: &str, replicas: &BTreeMap<JobId, Told>) {
        let head = harmless(head);
        if self.head != head {
            match &self.live {
                Some(live) => live.head.set_message(head.clone()),
                None => terminal::complain(&head),
            }
            self.head = head;
        }
        match &mut self.live {
            Some(live) => live.show(replicas),
            None => self.say_changes(replicas),
        }
    }

    fn say_changes(&mut self, replicas: &BTreeMap<JobId, Told>) {
        for (job, told) in replicas {
            if self.told.get(job) != Some(&told.what) {
                self.told.insert(*job, told.what.clone());
                terminal::complain(&format!("  replica (job {job}) {}", told.what));
            }
        }
    }

    /// Something worth keeping on the screen.
    pub fn note(&self, text: &str) {
        match &self.live {
            // If the terminal is gone there is nobody left to tell.
            Some(live) => drop(live.bars.println(terminal::safe::lines(text, false))),
            None => terminal::complain(text),
        }
    }

    /// Leaves the terminal as a plain one.
    pub fn finish(&self) {
        if let Some(live) = &self.live {
            live.replicas.values().for_each(ProgressBar::finish_and_clear);
            live.head.finish_and_clear();
        }
    }
}

impl Live {
    fn show(&mut self, replicas: &BTreeMap<JobId, Told>) {
        self.replicas.retain(|job, bar| {
            let stays = replicas.contains_key(job);
            if !stays {
                bar.finish_and_clear();
            }
            stays
        });
        for (job, told) in replicas {
            if !self.replicas.contains_key(job) && self.replicas.len() < LINES_MAX {
                self.replicas.insert(*job, self.bars.add(spinner()));
            }
            if let Some(bar) = self.replicas.get(job) {
                bar.set_message(harmless(&format!("  replica (job {job}) {}", told.line())));
            }
        }
    }
}

fn spinner() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
