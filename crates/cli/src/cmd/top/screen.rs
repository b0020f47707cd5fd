//! The terminal: taken, given back however it ends, and the loop between them.

use std::io::{self, Stdout};
use std::panic;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, raise};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute, terminal};
use tutti_wire::api::LogQuery;
use tutti_wire::client::Client;

use super::app::{App, Effect, Msg};
use super::data::Wanted;
use super::fetch::{self, Ask};
use super::follow::Follower;
use super::{Size, draw};
use crate::fail::Fail;
use crate::show::time;

/// What is new is drawn at most so often; what a key does, at once.
const FRAME: Duration = Duration::from_millis(250);
/// Clocks and ages move on.
const TICK: Duration = Duration::from_secs(1);
/// Messages that are taken before the screen has its turn.
const AT_ONCE: usize = 5_000;

pub fn size() -> Option<Size> {
    terminal::size().ok().map(|(width, height)| Size { width, height })
}

/// Where the controller is, for people.
pub fn place(client: &Client) -> String {
    match &client.cluster().data_dir {
        Some(dir) => dir.display().to_string(),
        None => client.endpoint().authority(),
    }
}

pub fn run(client: &Client, mut app: App) -> Result<ExitCode, Fail> {
    app.place = place(client);
    crate::session::be_silent();
    let (send, messages) = mpsc::channel();
    // Before any other thread is there, so that all of them leave these to one.
    let signals = ending_signals();
    signals.thread_block().map_err(|e| Fail::new(format!("can't block signals: {e}")))?;
    let mut screen = Screen::take()?;
    listen(signals, send.clone());
    let (asks, asked) = mpsc::channel();
    let fetcher = client.another();
    let (out, every) = (send.clone(), Duration::from_millis(app.every.0));
    std::thread::spawn(move || fetch::run(&fetcher, &asked, &out, every));
    let code =
        Loop { app, client, asks, send, follower: None, asked: None }.run(&mut screen, &messages);
    drop(screen);
    code.map(ExitCode::from)
}

fn ending_signals() -> SigSet {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        set.add(signal);
    }
    set
}

/// Keys and signals, each in a thread that ends with the process.
fn listen(signals: SigSet, send: Sender<Msg>) {
    let keys = send.clone();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let msg = match event {
                Event::Key(key) => Msg::Key(key),
                Event::Resize(width, height) => Msg::Resize(Size { width, height }),
                _ => continue,
            };
            if keys.send(msg).is_err() {
                return;
            }
        }
        // Nobody can type any more: the terminal is gone. A loop that has ended does not care.
        let _ = keys.send(Msg::End(Signal::SIGHUP as i32));
    });
    std::thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            if send.send(Msg::End(signal as i32)).is_err() {
                return;
            }
        }
    });
}

struct Loop<'c> {
    app: App,
    client: &'c Client,
    asks: Sender<Ask>,
    send: Sender<Msg>,
    follower: Option<Follower>,
    /// What the fetcher was told last.
    asked: Option<Wanted>,
}

impl Loop<'_> {
    fn run(mut self, screen: &mut Screen, messages: &Receiver<Msg>) -> Result<u8, Fail> {
        let mut drawn: Option<Instant> = None;
        let mut ticked: Option<Instant> = None;
        let mut news = false;
        loop {
            let mut at_once = drawn.is_none();
            if ticked.is_none_or(|at| at.elapsed() >= TICK) {
                self.app.update(Msg::Tick(time::now()));
                ticked = Some(Instant::now());
                news = true;
            }
            let frame_due = drawn.map_or(Duration::ZERO, |at| FRAME.saturating_sub(at.elapsed()));
            let tick_due = ticked.map_or(TICK, |at| TICK.saturating_sub(at.elapsed()));
            let pause = if at_once {
                Duration::ZERO
            } else if news {
                frame_due.min(tick_due)
            } else {
                tick_due
            };
            let mut next = match messages.recv_timeout(pause) {
                Ok(msg) => Some(msg),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
            };
            for _ in 0..AT_ONCE {
                let Some(msg) = next.take() else { break };
                at_once |= matches!(msg, Msg::Key(_) | Msg::Resize(_));
                news = true;
                let effects = self.app.update(msg);
                if effects.contains(&Effect::Pause) {
                    screen.pause()?;
                }
                if let Some(code) = self.carry_out(effects)? {
                    return Ok(code);
                }
                next = messages.try_recv().ok();
            }
            self.tell();
            if at_once || (news && drawn.is_none_or(|at| at.elapsed() >= FRAME)) {
                screen.draw(&mut self.app)?;
                drawn = Some(Instant::now());
                news = false;
            }
        }
    }

    /// What is on the screen now is asked for.
    fn tell(&mut self) {
        let wanted = self.app.wanted();
        if self.asked.as_ref() != Some(&wanted) {
            // The fetcher lives as long as the loop; if it died, the panic has ended the process.
            let _ = self.asks.send(Ask::Show(Box::new(wanted.clone())));
            self.asked = Some(wanted);
        }
    }

    /// The exit code, if that was the end.
    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<Option<u8>, Fail> {
        for effect in effects {
            match effect {
                Effect::Quit(code) => return Ok(Some(code)),
                Effect::Fail(fail) => return Err(fail),
                Effect::Cancel(id) => {
                    let _ = self.asks.send(Ask::Cancel(id));
                    let text = format!("asking to cancel job {id} …");
                    self.app.update(Msg::Said { text, bad: false });
                }
                Effect::Follow { number, id, ranks, tail } => {
                    let query = LogQuery {
                        rank: ranks,
                        follow: true,
                        tail: Some(tail),
                        ..LogQuery::default()
                    };
                    let (cluster, out) = (self.client.cluster(), self.send.clone());
                    self.follower = Some(Follower::start(cluster, number, id, query, out));
                }
                Effect::Unfollow => self.follower = None,
                // The screen's own business.
                Effect::Pause => {}
            }
        }
        Ok(None)
    }
}

/// The terminal while it is ours. Given back when it is dropped, and by a panic of any thread.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

static TAKEN: AtomicBool = AtomicBool::new(false);

impl Screen {
    fn take() -> Result<Screen, Fail> {
        give_back_on_panic();
        let taken = grab().and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match taken {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(error) => {
                give_back();
                Err(Fail::new(format!("can't take the terminal: {error}")))
            }
        }
    }

    /// The shell has the terminal until it says that we go on.
    fn pause(&mut self) -> Result<(), Fail> {
        give_back();
        raise(Signal::SIGSTOP).map_err(|e| Fail::new(format!("can't stop: {e}")))?;
        // Not `clear`: that asks the terminal where its cursor is, and the thread that reads keys would
        // have to let go of the answer.
        let again = |size: ratatui::layout::Size| self.terminal.resize(size.into());
        let back = grab().and_then(|()| terminal::size()).map(|(w, h)| (w, h).into());
        back.and_then(again).map_err(|e| Fail::new(format!("can't take the terminal again: {e}")))
    }

    fn draw(&mut self, app: &mut App) -> Result<(), Fail> {
        let bad = |e: io::Error| Fail::new(format!("can't draw: {e}"));
        // The terminal's word counts, not an event that may be under way.
        let now = self.terminal.size().map_err(bad)?;
        let now = Size { width: now.width, height: now.height };
        if now != app.size {
            app.update(Msg::Resize(now));
        }
        #[cfg(debug_assertions)]
        break_for_a_test();
        self.terminal.draw(|frame| draw::draw(app, frame)).map_err(bad)?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn grab() -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, Ordering::SeqCst);
    execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)
}

/// Once. There is nobody to tell if it fails.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        let _ = disable_raw_mode();
    }
}

/// A panic is read on a terminal that is whole again, and ends the process whichever thread it was:
/// a screen without its fetcher would show the past for ever.
fn give_back_on_panic() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        give_back();
        usual(info);
        std::process::exit(101);
    }));
}

/// So that a test can see what a panic leaves behind; not in what is handed out.
#[cfg(debug_assertions)]
fn break_for_a_test() {
    if std::env::var_os("TUTTI_TEST_TOP_PANIC").is_some() {
        panic!("asked to by TUTTI_TEST_TOP_PANIC");
    }
}
