//! How far a simulation is, for those who look.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::terminal;

pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    pub fn new(what: &str, jobs: u64) -> Progress {
        let bar = terminal::stderr_is_live().then(|| {
            let bar =
                ProgressBar::with_draw_target(Some(jobs), ProgressDrawTarget::stderr_with_hz(5));
            let style = ProgressStyle::with_template(
                "{prefix:<14} {bar:30} {human_pos}/{human_len} jobs, {per_sec}, {eta} left",
            );
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(what.to_owned());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Progress { bar }
    }

    pub fn at(&self, over: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(over);
        }
    }

    pub fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
