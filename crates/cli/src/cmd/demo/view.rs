//! What people see while the demo runs: on a terminal one live line for the scene and one for the
//! GPUs, with what is done scrolling up; elsewhere plain lines with the time.

mod nodes;

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tutti_wire::client::Client;

use super::summary::wrap;
use crate::show::harmless;
use crate::show::table::terminal_width;
use crate::style::{Ink, Style};
use crate::terminal;
use nodes::NodeLine;

const NAME_WIDTH: usize = 9;

pub struct View {
    began: Instant,
    style: Style,
    scene: Cell<&'static str>,
    live: Option<Live>,
}

struct Live {
    bars: MultiProgress,
    scene: ProgressBar,
    nodes: RefCell<Option<NodeLine>>,
    width: usize,
}

impl View {
    pub fn new() -> View {
        let live = terminal::stderr_is_live().then(Live::new);
        View { began: Instant::now(), style: Style::of_stderr(), scene: Cell::new(""), live }
    }

    pub fn title(&self, text: &str) {
        let width = self.live.as_ref().map_or(usize::MAX, |l| l.width);
        for line in wrap(text, width) {
            self.line(&self.style.paint(Ink::Bold, &line));
        }
    }

    /// A scene begins.
    pub fn begin(&self, scene: &'static str, text: &str) {
        self.scene.set(scene);
        match &self.live {
            Some(live) => {
                live.scene.set_prefix(format!("{scene:<NAME_WIDTH$}"));
                live.scene.set_message(harmless(text));
                live.scene.enable_steady_tick(Duration::from_millis(100));
            }
            None => self.stamped(text),
        }
    }

    /// What happens at this moment; gone with the next. Only for those who look.
    pub fn now(&self, text: &str) {
        if let Some(live) = &self.live {
            live.scene.set_message(harmless(text));
        }
    }

    /// Something worth keeping on the screen.
    pub fn note(&self, text: &str) {
        match &self.live {
            Some(_) => self.block(Ink::Dim, "·", "", text),
            None => self.stamped(text),
        }
    }

    /// The scene came out as it should.
    pub fn done(&self, text: &str) {
        match &self.live {
            Some(_) => self.block(Ink::Green, "✔", self.scene.get(), text),
            None => self.stamped(&format!("ok: {text}")),
        }
    }

    pub fn failed(&self, text: &str) {
        match &self.live {
            Some(_) => self.block(Ink::Red, "✘", self.scene.get(), text),
            None => self.stamped(&format!("failed: {text}")),
        }
    }

    /// From now on the GPUs of each node are shown too.
    pub fn watch_nodes(&self, client: &Client) {
        if let Some(live) = &self.live {
            let bar = live.bars.add(ProgressBar::new_spinner());
            *live.nodes.borrow_mut() = Some(NodeLine::watch(bar, client, self.style));
        }
    }

    /// Leaves the terminal as a plain one.
    pub fn finish(&self) {
        if let Some(live) = &self.live {
            live.nodes.borrow_mut().take();
            live.scene.finish_and_clear();
        }
    }

    fn block(&self, ink: Ink, mark: &str, scene: &str, text: &str) {
        let Some(live) = &self.live else { return };
        let indent = NAME_WIDTH + 3;
        let lines = wrap(text, live.width.saturating_sub(indent));
        for (i, line) in lines.iter().enumerate() {
            let head = if i == 0 {
                format!("{} {scene:<NAME_WIDTH$} ", self.style.paint(ink, mark))
            } else {
                " ".repeat(indent)
            };
            self.line(&format!(
                "{head}{}",
                if ink == Ink::Dim { self.style.paint(ink, line) } else { line.clone() }
            ));
        }
    }

    fn stamped(&self, text: &str) {
        let (at, scene) = (self.began.elapsed().as_secs_f64(), self.scene.get());
        self.line(&format!("{at:5.1} s  {scene:<NAME_WIDTH$}  {text}"));
    }

    fn line(&self, text: &str) {
        match &self.live {
            // If the terminal is gone there is nobody left to tell.
            Some(live) => {
                drop(live.bars.println(terminal::safe::lines(text, self.style.is_coloured())))
            }
            None => terminal::complain_in_colour(text),
        }
    }
}

impl Live {
    fn new() -> Live {
        let bars = MultiProgress::new();
        let scene = bars.add(ProgressBar::new_spinner());
        scene.set_style(template("{spinner} {prefix} {wide_msg}"));
        let width = terminal_width().map_or(100, usize::from).clamp(40, 100);
        Live { bars, scene, nodes: RefCell::new(None), width }
    }
}

fn template(text: &str) -> ProgressStyle {
    ProgressStyle::with_template(text).expect("a template of ours is well formed")
}
