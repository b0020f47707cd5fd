//! Everything that the screen shows, and the one function that changes it.

use ratatui::crossterm::event::KeyEvent;
use tutti_model::{HealthAction, NodeState, Span, TaskId, Time, WatchRule};
use tutti_wire::api::{JobRow, NodeRow};

use super::data::{Data, Found, FoundJob, JobsWanted, News, Wanted};
use super::filter::{JobFilter, wants_node};
use super::list::List;
use super::logs::{LogMsg, Logs};
use super::sort::{JobSort, NodeSort};
use super::theme::Theme;
use super::{MIN, Size, cells, draw};
use crate::fail::Fail;
use crate::show::alerts::about;

/// Rows of a page, and of all pages.
const JOBS_STEP: usize = 100;
const JOBS_MAX: usize = 10_000;
/// For an order of their own there must be something to put in order.
const JOBS_SORTED: usize = 1_000;
/// What was said is shown for so long.
const SAID_FOR: Span = Span::secs(15);
/// How old the data is is said from here on.
const AGE_SHOWN: Span = Span::secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Cluster,
    Jobs,
    Nodes,
    Job,
    Node,
    Logs,
}

/// Something happened.
#[derive(Debug)]
pub enum Msg {
    Key(KeyEvent),
    Resize(Size),
    Tick(Time),
    News(Box<News>),
    /// No answer, or none that can be read.
    Lost(String),
    /// The controller wants nothing to do with us, from the first word on.
    Refused(Fail),
    /// An answer to a change.
    Said {
        text: String,
        bad: bool,
    },
    /// Of the log with this number; older ones are no longer shown.
    Log(u64, LogMsg),
    /// A signal asks for the end.
    End(i32),
}

/// What has to be done outside.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    Quit(u8),
    Fail(Fail),
    Cancel(TaskId),
    /// Read this log, instead of the one before.
    Follow {
        number: u64,
        id: TaskId,
        ranks: Option<String>,
        tail: u32,
    },
    Unfollow,
    /// Stopped by its user, as any program is by ctrl-z; goes on when the shell says so.
    Pause,
}

/// What is being typed, or asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Takes effect while it is typed; `before` comes back when it is given up.
    Filter {
        text: String,
        before: String,
    },
    Search {
        text: String,
    },
    Ranks {
        text: String,
    },
    Cancel {
        id: TaskId,
        what: String,
    },
}

#[derive(Clone, Debug)]
pub struct Trouble {
    pub text: String,
    pub since: Time,
}

#[derive(Clone, Debug)]
pub struct Said {
    pub text: String,
    pub bad: bool,
    until: Time,
}

#[derive(Clone, Debug, Default)]
pub struct Jobs {
    pub list: List<TaskId>,
    pub order: Vec<usize>,
    pub sort: JobSort,
    pub reverse: bool,
    pub filter: String,
    pub ended: bool,
    pub tasks: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Nodes {
    pub list: List<String>,
    pub order: Vec<usize>,
    pub sort: NodeSort,
    pub reverse: bool,
    pub filter: String,
}

/// What the cells of the cluster stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Activity,
    Allocation,
    Memory,
    Power,
    Heat,
}

pub struct App {
    pub theme: Theme,
    pub size: Size,
    /// How often the controller is asked.
    pub every: Span,
    /// Where the controller is, in words.
    pub place: String,
    /// By our clock, and how far the controller's is ahead of it, in milliseconds.
    pub now: Time,
    pub ahead: i64,
    pub view: View,
    /// Where `esc` leads.
    pub(super) back: Vec<View>,
    pub data: Data,
    /// When the data came.
    pub heard: Option<Time>,
    /// When it was first asked for.
    began: Option<Time>,
    pub trouble: Option<Trouble>,
    pub jobs: Jobs,
    pub nodes: Nodes,
    pub mode: Mode,
    pub cells_offset: usize,
    pub job: Option<TaskId>,
    pub node: Option<String>,
    /// Of the job or node that is open.
    pub scroll: usize,
    pub logs: Logs,
    pub prompt: Option<Prompt>,
    pub help: bool,
    pub said: Option<Said>,
}

impl App {
    pub fn new(theme: Theme, size: Size, every: Span) -> App {
        App {
            theme,
            size,
            every,
            place: String::new(),
            now: Time(0),
            ahead: 0,
            view: View::Cluster,
            back: Vec::new(),
            data: Data::default(),
            heard: None,
            began: None,
            trouble: None,
            jobs: Jobs::default(),
            nodes: Nodes::default(),
            mode: Mode::default(),
            cells_offset: 0,
            job: None,
            node: None,
            scroll: 0,
            logs: Logs::default(),
            prompt: None,
            help: false,
            said: None,
        }
    }

    /// The only way in which anything changes.
    pub fn update(&mut self, msg: Msg) -> Vec<Effect> {
        let mut effects = Vec::new();
        match msg {
            Msg::Key(key) => effects = self.key(key),
            Msg::Resize(size) => self.size = size,
            Msg::Tick(now) => {
                self.now = now;
                self.began.get_or_insert(now);
                self.said.take_if(|said| said.until <= now);
            }
            Msg::News(news) => self.take(*news),
            Msg::Lost(text) => {
                let since = self.trouble.as_ref().map_or(self.now, |trouble| trouble.since);
                self.trouble = Some(Trouble { text, since });
            }
            Msg::Refused(fail) => effects.push(Effect::Fail(fail)),
            Msg::Said { text, bad } => self.say(text, bad),
            Msg::Log(number, log) => {
                self.logs.take(number, log);
                return effects;
            }
            Msg::End(signal) => effects.push(Effect::Quit(128 + signal.clamp(0, 127) as u8)),
        }
        self.settle();
        effects
    }

    pub fn say(&mut self, text: String, bad: bool) {
        self.said = Some(Said { text, bad, until: self.now.plus(SAID_FOR) });
    }

    fn take(&mut self, news: News) {
        self.ahead = i64::try_from(news.cluster.now.0).unwrap_or_default()
            - i64::try_from(self.now.0).unwrap_or_default();
        self.data.take(news);
        self.heard = Some(self.now);
        self.trouble = None;
    }

    /// By the controller's clock, as everything that it says.
    pub fn there(&self) -> Time {
        Time(self.now.0.saturating_add_signed(self.ahead))
    }

    /// How old the data is, where it is older than it should be.
    pub fn old(&self) -> Option<Span> {
        let age = self.now.since(self.heard?);
        (self.trouble.is_some() || age.0 > 3 * self.every.0 + 10_000).then_some(age)
    }

    /// How long ago the data came, where that is worth a word and is still as it should be.
    pub fn age(&self) -> Option<Span> {
        let age = self.now.since(self.heard?);
        (self.old().is_none() && age >= AGE_SHOWN).then_some(age)
    }

    /// How long nothing has come at all, where that is long.
    pub fn unheard(&self) -> Option<Span> {
        let waited = self.now.since(self.began?);
        (self.heard.is_none() && waited >= AGE_SHOWN).then_some(waited)
    }

    pub fn is_too_small(&self) -> bool {
        self.size.width < MIN.width || self.size.height < MIN.height
    }

    /// Rows between the head and the foot of the screen.
    pub fn body_height(&self) -> usize {
        let banner = usize::from(self.banner());
        usize::from(self.size.height).saturating_sub(3 + banner)
    }

    pub fn banner(&self) -> bool {
        self.trouble.is_some() || self.old().is_some() || self.unheard().is_some()
    }

    /// Rows of a list: above it are a line about it and its head.
    pub fn list_height(&self) -> usize {
        self.body_height().saturating_sub(2)
    }
}

/// Looking.
impl App {
    pub fn job_rows(&self) -> impl Iterator<Item = &JobRow> {
        self.jobs.order.iter().filter_map(|i| self.data.jobs.rows.get(*i))
    }

    pub fn node_rows(&self) -> impl Iterator<Item = &NodeRow> {
        self.nodes.order.iter().filter_map(|i| self.data.nodes.get(*i))
    }

    pub fn found_job(&self) -> Option<&FoundJob> {
        match self.data.job(self.job?)? {
            Found::Job(found) => Some(found),
            Found::Not { .. } => None,
        }
    }

    pub fn open_node(&self) -> Option<&NodeRow> {
        let name = self.node.as_ref()?;
        self.data.nodes.iter().find(|node| node.name == *name)
    }

    /// Findings with their nodes and alerts, the hardest first, and nodes that are gone before all.
    pub fn findings(&self) -> Vec<(u8, String)> {
        let mut all = Vec::new();
        for node in &self.data.nodes {
            if matches!(node.state, NodeState::Lost | NodeState::Away) {
                all.push((u8::MAX, format!("{} is {}", node.name, node.state.as_str())));
            }
            for finding in &node.findings {
                let gpu = finding.gpu.map_or_else(String::new, |gpu| format!(" GPU {gpu}"));
                let drill = if finding.drill { " (drill)" } else { "" };
                let text = format!("{}{gpu}: {}{drill}", node.name, finding.text);
                all.push((finding.action as u8, text));
            }
            let trouble = node.trouble.as_ref();
            all.extend(trouble.map(|why| (0, format!("{} is suspect: {why}", node.name))));
        }
        // Beside what the machines say of themselves, what the controller found. That a node is lost is
        // said above.
        let alerts = self.data.alerts.iter().filter(|alert| alert.rule != WatchRule::NodeLost);
        all.extend(alerts.map(|alert| {
            (HealthAction::RestartJob as u8, format!("{}: {}", about(alert), alert.text))
        }));
        all.sort_by_key(|(hard, _)| std::cmp::Reverse(*hard));
        all
    }

    /// What has to be asked for to fill the screen.
    pub fn wanted(&self) -> Wanted {
        let mut wanted = Wanted::default();
        match self.view {
            View::Cluster => {
                wanted.nodes = true;
                wanted.cells = cells::shown(self);
            }
            View::Jobs => {
                wanted.jobs = Some(self.jobs_wanted());
                let all = self.jobs.sort == JobSort::Busy;
                let (skip, take) = window(all, self.jobs.list.offset, self.list_height());
                let shown = self.job_rows().skip(skip).take(take);
                let held = shown.filter(|job| !job.node_names.is_empty());
                wanted.shown = held.map(|job| job.id).collect();
                wanted.shown.sort_unstable();
            }
            View::Nodes => {
                wanted.nodes = true;
                let all = self.nodes.sort.needs_load();
                let (skip, take) = window(all, self.nodes.list.offset, self.list_height());
                let shown = self.node_rows().skip(skip).take(take);
                wanted.cells = shown.map(|node| node.name.clone()).collect();
                wanted.cells.sort_unstable();
            }
            View::Node => {
                wanted.nodes = true;
                wanted.cells = self.node.iter().cloned().collect();
            }
            View::Job | View::Logs => {
                wanted.job = self.job;
                wanted.shown = self.job.into_iter().collect();
                let parts = self.found_job().into_iter().flat_map(|job| &job.detail.parts);
                wanted.cells = parts.map(|part| part.node.clone()).collect();
            }
        }
        wanted
    }

    fn jobs_wanted(&self) -> JobsWanted {
        let far = self.jobs.list.offset + 2 * self.list_height();
        let rows = (far / JOBS_STEP + 1) * JOBS_STEP;
        let rows = if self.jobs.sort == JobSort::Usual { rows } else { rows.max(JOBS_SORTED) };
        JobsWanted {
            filter: JobFilter::parse(&self.jobs.filter),
            rows: rows.min(JOBS_MAX) as u32,
            ended: self.jobs.ended,
            tasks: self.jobs.tasks,
        }
    }
}

/// Which rows of a list count: those in sight, or all.
fn window(all: bool, offset: usize, height: usize) -> (usize, usize) {
    if all { (0, usize::MAX) } else { (offset, height) }
}

/// Going.
impl App {
    /// Filters are of the view: of jobs there, of nodes everywhere else.
    pub fn filter(&mut self, text: &str) {
        match self.view {
            View::Jobs => self.jobs.filter = text.to_owned(),
            _ => self.nodes.filter = text.to_owned(),
        }
        self.settle();
    }

    pub fn go(&mut self, view: View) {
        if view == self.view {
            return;
        }
        // The views of the first row lead nowhere back; the others to where they were opened.
        match view {
            View::Cluster | View::Jobs | View::Nodes => self.back.clear(),
            View::Job | View::Node | View::Logs => self.back.push(self.view),
        }
        self.scroll = 0;
        self.view = view;
    }

    pub fn open_job(&mut self, id: TaskId) {
        self.job = Some(id);
        self.go(View::Job);
    }

    /// The job that keys are about: the open one, or the one under the cursor.
    pub fn chosen(&self) -> Option<TaskId> {
        match self.view {
            View::Jobs => self.jobs.list.selected().copied(),
            View::Job | View::Logs => self.job,
            View::Cluster | View::Nodes | View::Node => None,
        }
    }

    /// After every change: orders, cursors and offsets fit what is there.
    pub fn settle(&mut self) {
        self.jobs.order = self.jobs.sort.order(self.jobs.reverse, &self.data, self.there());
        let wanted = |i: &usize| wants_node(&self.nodes.filter, &self.data.nodes[*i]);
        let some: Vec<usize> = (0..self.data.nodes.len()).filter(wanted).collect();
        self.nodes.order = self.nodes.sort.order(self.nodes.reverse, &self.data, some);
        let height = self.list_height();
        let ids = self.job_keys();
        self.jobs.list.follow(&ids, height);
        let names = self.node_keys();
        self.nodes.list.follow(&names, height);
        self.cells_offset = self.cells_offset.min(cells::offset_max(self));
        if matches!(self.view, View::Job | View::Node) {
            self.scroll = self.scroll.min(draw::lines(self).saturating_sub(self.body_height()));
        }
        self.logs.settle(self.logs_height());
    }

    pub fn logs_height(&self) -> usize {
        self.body_height().saturating_sub(1)
    }

    pub fn job_keys(&self) -> Vec<TaskId> {
        self.job_rows().map(|job| job.id).collect()
    }

    pub fn node_keys(&self) -> Vec<String> {
        self.node_rows().map(|node| node.name.clone()).collect()
    }
}
