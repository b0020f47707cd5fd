//! How far a long read is, for those who look.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::terminal;

pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// Without a known end it counts.
    pub fn new(what: &'static str, bytes: u64) -> Bar {
        Bar(terminal::stderr_is_live().then(|| {
            let target = ProgressDrawTarget::stderr_with_hz(5);
            let bar = ProgressBar::with_draw_target((bytes > 0).then_some(bytes), target);
            let template = if bytes > 0 {
                "{prefix} {bar:30} {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left"
            } else {
                "{prefix} {binary_bytes}, {binary_bytes_per_sec}"
            };
            let style = ProgressStyle::with_template(template);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(what);
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        }))
    }

    pub fn add(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(bytes);
        }
    }

    pub fn done(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
