//! What keys do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tutti_model::TaskId;

use super::app::{App, Effect, Mode, Prompt, View};
use super::cells;
use crate::show::{count, harmless};

/// Lines of a log that are asked for at first, over all ranks.
const TAIL_ALL: u32 = 8_000;
const TAIL_MAX: u32 = 1_000;
const SIDEWAYS: usize = 8;

pub const HELP: &[(&str, &str)] = &[
    ("1 2 3 4", "cluster, jobs, nodes, the job; tab, ← and → go from one to the next"),
    ("↑ ↓ j", "move; pgup, pgdn, home, end, g and G move further"),
    ("enter", "open the job or node under the cursor"),
    ("esc", "back; gives up what is being typed"),
    ("/ f", "filter: part of the name, user:ada, team:vision, state:failed, 12; in logs: search"),
    ("s", "sort by the next column"),
    ("S r", "the other way round"),
    ("k", "kill: cancel the job, after a question"),
    ("l", "logs of the job"),
    ("a", "jobs: ended ones too"),
    ("t", "jobs: each task of an array"),
    ("c", "cluster: what cells show: activity, allocation, memory, power, heat"),
    ("n N", "logs: the next line found, the one before"),
    ("F", "logs: follow what is written (also end)"),
    ("r", "logs: only these ranks, such as 0-3,7"),
    ("? q", "this help; quit (also ctrl-c)"),
];

impl App {
    pub(super) fn key(&mut self, key: KeyEvent) -> Vec<Effect> {
        if key.kind == KeyEventKind::Release {
            return Vec::new();
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return vec![Effect::Quit(0)];
        }
        if control && key.code == KeyCode::Char('z') {
            return vec![Effect::Pause];
        }
        if self.is_too_small() {
            let quit = key.code == KeyCode::Char('q');
            return if quit { vec![Effect::Quit(0)] } else { Vec::new() };
        }
        if self.prompt.is_some() {
            return self.typed(key.code);
        }
        if self.help {
            self.help = false;
            // Any key closes the help; that one also quits.
            return if key.code == KeyCode::Char('q') { vec![Effect::Quit(0)] } else { Vec::new() };
        }
        match key.code {
            KeyCode::Char('p') if control => self.travel(-1),
            KeyCode::Char('n') if control => self.travel(1),
            KeyCode::Char('b') if control => self.travel(-self.page()),
            KeyCode::Char('f') if control => self.travel(self.page()),
            _ if control || key.modifiers.contains(KeyModifiers::ALT) => {}
            code => return self.plain(code),
        }
        Vec::new()
    }

    fn plain(&mut self, code: KeyCode) -> Vec<Effect> {
        let logs = self.view == View::Logs;
        match code {
            KeyCode::Char('q') => return vec![Effect::Quit(0)],
            KeyCode::Char('?') | KeyCode::F(1) => self.help = true,
            KeyCode::Esc | KeyCode::Backspace => return self.leave(),
            KeyCode::Char(c @ '1'..='4') => return self.tab(c as usize - '1' as usize),
            KeyCode::Tab => return self.tab(self.place_of_view() + 1),
            KeyCode::BackTab => return self.tab(self.place_of_view() + 3),
            KeyCode::Right | KeyCode::Char('l') if logs => self.logs.left += SIDEWAYS,
            KeyCode::Left | KeyCode::Char('h') if logs => {
                self.logs.left = self.logs.left.saturating_sub(SIDEWAYS);
            }
            KeyCode::Right => return self.tab(self.place_of_view() + 1),
            KeyCode::Left | KeyCode::Char('h') => return self.tab(self.place_of_view() + 3),
            KeyCode::Up => self.travel(-1),
            KeyCode::Char('k') if logs => self.travel(-1),
            KeyCode::Down | KeyCode::Char('j') => self.travel(1),
            KeyCode::PageUp => self.travel(-self.page()),
            KeyCode::PageDown | KeyCode::Char(' ') => self.travel(self.page()),
            KeyCode::Home | KeyCode::Char('g') => self.travel(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.travel(isize::MAX),
            KeyCode::Enter => self.open(),
            KeyCode::Char('/' | 'f') => self.ask_filter(),
            KeyCode::Char('k') => self.ask_cancel(),
            KeyCode::Char('l') => return self.open_logs(),
            code if logs => return self.in_logs(code),
            code => self.in_lists(code),
        }
        Vec::new()
    }

    fn in_lists(&mut self, code: KeyCode) {
        match (self.view, code) {
            (View::Jobs, KeyCode::Char('s')) => {
                self.jobs.sort = self.jobs.sort.next();
                self.jobs.list.reset();
            }
            (View::Jobs, KeyCode::Char('S' | 'r')) => {
                self.jobs.reverse = !self.jobs.reverse;
                self.jobs.list.reset();
            }
            (View::Jobs, KeyCode::Char('a')) => self.jobs.ended = !self.jobs.ended,
            (View::Jobs, KeyCode::Char('t')) => self.jobs.tasks = !self.jobs.tasks,
            (View::Nodes, KeyCode::Char('s')) => {
                self.nodes.sort = self.nodes.sort.next();
                self.nodes.list.reset();
            }
            (View::Nodes, KeyCode::Char('S' | 'r')) => {
                self.nodes.reverse = !self.nodes.reverse;
                self.nodes.list.reset();
            }
            (View::Cluster, KeyCode::Char('c')) => {
                self.mode = match self.mode {
                    Mode::Activity => Mode::Allocation,
                    Mode::Allocation => Mode::Memory,
                    Mode::Memory => Mode::Power,
                    Mode::Power => Mode::Heat,
                    Mode::Heat => Mode::Activity,
                }
            }
            _ => {}
        }
    }

    fn in_logs(&mut self, code: KeyCode) -> Vec<Effect> {
        match code {
            KeyCode::Char('n') => self.logs.find(1),
            KeyCode::Char('N') => self.logs.find(-1),
            KeyCode::Char('F') => self.logs.follow = !self.logs.follow,
            KeyCode::Char('r') => {
                let text = self.logs.ranks.clone().unwrap_or_default();
                self.prompt = Some(Prompt::Ranks { text });
            }
            _ => {}
        }
        Vec::new()
    }

    /// While something is typed or asked.
    fn typed(&mut self, code: KeyCode) -> Vec<Effect> {
        let Some(prompt) = self.prompt.take() else { return Vec::new() };
        if let Prompt::Cancel { id, what } = prompt {
            match code {
                KeyCode::Char('y' | 'Y') => return vec![Effect::Cancel(id)],
                KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => {}
                // Anything else is no answer.
                _ => self.prompt = Some(Prompt::Cancel { id, what }),
            }
            return Vec::new();
        }
        match (code, prompt) {
            (KeyCode::Enter, Prompt::Search { text }) => {
                self.logs.search = (!text.is_empty()).then_some(text);
                self.logs.find(-1);
            }
            (KeyCode::Enter, Prompt::Ranks { text }) => return self.choose_ranks(text.trim()),
            (KeyCode::Enter, _) => {}
            (KeyCode::Esc, Prompt::Filter { before, .. }) => self.filter(&before),
            (KeyCode::Esc, _) => {}
            (code, mut prompt) => {
                edit(&mut prompt, code);
                if let Prompt::Filter { text, .. } = &prompt {
                    let text = text.clone();
                    self.jobs_or_nodes_from_start();
                    self.filter(&text);
                }
                self.prompt = Some(prompt);
            }
        }
        Vec::new()
    }

    fn jobs_or_nodes_from_start(&mut self) {
        match self.view {
            View::Jobs => self.jobs.list.reset(),
            _ => self.nodes.list.reset(),
        }
    }

    fn page(&self) -> isize {
        let rows = match self.view {
            View::Cluster => cells::height(self),
            View::Jobs | View::Nodes => self.list_height(),
            View::Job | View::Node => self.body_height(),
            View::Logs => self.logs_height(),
        };
        rows.saturating_sub(1).max(1) as isize
    }

    fn travel(&mut self, by: isize) {
        let height = self.list_height();
        match self.view {
            View::Cluster => self.cells_offset = self.cells_offset.saturating_add_signed(by),
            View::Jobs => {
                let keys = self.job_keys();
                self.jobs.list.go(by, &keys, height);
            }
            View::Nodes => {
                let keys = self.node_keys();
                self.nodes.list.go(by, &keys, height);
            }
            View::Job | View::Node => self.scroll = self.scroll.saturating_add_signed(by),
            View::Logs => self.logs.travel(by, self.logs_height()),
        }
    }

    fn place_of_view(&self) -> usize {
        match self.view {
            View::Cluster => 0,
            View::Jobs => 1,
            View::Nodes | View::Node => 2,
            View::Job | View::Logs => 3,
        }
    }

    fn tab(&mut self, place: usize) -> Vec<Effect> {
        let left_logs = self.view == View::Logs;
        match place % 4 {
            0 => self.go(View::Cluster),
            1 => self.go(View::Jobs),
            2 => self.go(View::Nodes),
            _ => match self.job.or(self.jobs.list.selected().copied()) {
                Some(id) if self.view != View::Job => self.open_job(id),
                Some(_) => {}
                None => {
                    self.say("no job is chosen: 2 lists them, enter opens one".to_owned(), false)
                }
            },
        }
        self.left_logs(left_logs)
    }

    fn leave(&mut self) -> Vec<Effect> {
        let left_logs = self.view == View::Logs;
        let filter = match self.view {
            View::Jobs => &self.jobs.filter,
            View::Nodes | View::Cluster => &self.nodes.filter,
            View::Job | View::Node | View::Logs => "",
        };
        if !filter.is_empty() {
            self.filter("");
        } else if self.logs.search.is_some() && left_logs {
            self.logs.search = None;
            return Vec::new();
        } else if let Some(view) = self.back.pop() {
            self.view = view;
            self.scroll = 0;
        } else {
            self.go(View::Cluster);
        }
        self.left_logs(left_logs)
    }

    /// What nobody looks at is not read.
    fn left_logs(&mut self, was_there: bool) -> Vec<Effect> {
        if was_there && self.view != View::Logs { vec![Effect::Unfollow] } else { Vec::new() }
    }

    fn open(&mut self) {
        match self.view {
            View::Jobs => {
                if let Some(id) = self.jobs.list.selected().copied() {
                    self.open_job(id);
                }
            }
            View::Nodes => {
                if let Some(name) = self.nodes.list.selected().cloned() {
                    self.node = Some(name);
                    self.go(View::Node);
                }
            }
            View::Cluster => self.go(View::Nodes),
            View::Job | View::Node | View::Logs => {}
        }
    }

    fn ask_filter(&mut self) {
        self.prompt = match self.view {
            View::Logs => Some(Prompt::Search { text: String::new() }),
            View::Jobs => {
                let text = self.jobs.filter.clone();
                Some(Prompt::Filter { before: text.clone(), text })
            }
            View::Cluster | View::Nodes => {
                let text = self.nodes.filter.clone();
                Some(Prompt::Filter { before: text.clone(), text })
            }
            View::Job | View::Node => None,
        };
    }

    fn ask_cancel(&mut self) {
        let Some(id) = self.chosen() else {
            return self.say("no job is chosen: 2 lists them".to_owned(), false);
        };
        let listed = self.data.jobs.rows.iter().find(|job| job.id == id);
        let row = self.found_job().map(|job| &job.detail.row).filter(|job| job.id == id);
        let what = row.or(listed).map_or_else(String::new, |job| {
            let gpus = count(job.gpus.into(), "GPU");
            let (name, user) = (harmless(&job.name), harmless(&job.user));
            format!(" ({name} of {user}, {}, {gpus})", job.state.as_str())
        });
        self.prompt = Some(Prompt::Cancel { id, what });
    }

    fn open_logs(&mut self) -> Vec<Effect> {
        let Some(id) = self.chosen() else {
            self.say("no job is chosen: 2 lists them".to_owned(), false);
            return Vec::new();
        };
        self.job = Some(id);
        self.go(View::Logs);
        self.follow_log(id, None)
    }

    fn choose_ranks(&mut self, text: &str) -> Vec<Effect> {
        let Some(id) = self.logs.id else { return Vec::new() };
        let all = text.is_empty() || text == "all";
        self.follow_log(id, (!all).then(|| text.to_owned()))
    }

    fn follow_log(&mut self, id: TaskId, ranks: Option<String>) -> Vec<Effect> {
        let listed = self.data.jobs.rows.iter().find(|job| job.id == id);
        let of_row = listed.map_or(1, |job| job.gpus.max(job.nodes));
        let of_job = self.found_job().map(|job| job.detail.parts.iter().map(|p| p.ranks).sum());
        let several = of_job.unwrap_or(of_row).max(1);
        let tail = (TAIL_ALL / several).clamp(20, TAIL_MAX);
        let number = self.logs.start(id, ranks.clone());
        vec![Effect::Follow { number, id, ranks, tail }]
    }
}

fn edit(prompt: &mut Prompt, code: KeyCode) {
    let (Prompt::Filter { text, .. } | Prompt::Search { text } | Prompt::Ranks { text }) = prompt
    else {
        return;
    };
    match code {
        KeyCode::Char(c) if !c.is_control() => text.push(c),
        KeyCode::Backspace => drop(text.pop()),
        KeyCode::Delete => text.clear(),
        _ => {}
    }
}
