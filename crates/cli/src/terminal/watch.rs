//! `--watch`: a frame again and again, on a terminal in place. A thread asks, so that how old the frame
//! is can be said while nobody answers.
#![allow(clippy::print_stdout)]

use std::io::Write;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tutti_model::{Span, Time};

use super::{complain, safe, stdout_is_terminal};
use crate::fail::{Fail, UNREACHABLE};
use crate::show::time;
use crate::style::{Ink, Style};

const EVERY: Duration = Duration::from_secs(1);
/// A frame that is older is said to be.
const OLD: Span = Span::secs(4);

enum News {
    Frame(String),
    /// Nobody answered; it is asked again.
    Away(String),
    End(Fail),
}

/// Shows `frame` again and again. A controller that goes away later than the first frame is waited for.
pub fn watch(frame: impl FnMut() -> Result<String, Fail> + Send) -> Result<ExitCode, Fail> {
    crate::session::be_silent();
    let (send, news) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || ask(frame, &send));
        let mut view =
            View { painted: stdout_is_terminal(), shown: None, trouble: None, told: false };
        loop {
            match news.recv_timeout(EVERY) {
                Ok(News::Frame(text)) => {
                    view.shown = Some((text, time::now(), Instant::now()));
                    (view.trouble, view.told) = (None, false);
                    view.frame()?;
                }
                Ok(News::Away(why)) => {
                    view.trouble = Some(why);
                    view.age()?;
                }
                Ok(News::End(fail)) => return Err(fail),
                Err(RecvTimeoutError::Timeout) => view.age()?,
                Err(RecvTimeoutError::Disconnected) => return Ok(ExitCode::FAILURE),
            }
        }
    })
}

fn ask(mut frame: impl FnMut() -> Result<String, Fail>, send: &Sender<News>) {
    let mut seen = false;
    loop {
        let news = match frame() {
            Ok(text) => News::Frame(text),
            Err(fail) if seen && fail.exit == UNREACHABLE => News::Away(fail.message),
            Err(fail) => News::End(fail),
        };
        seen = true;
        let over = matches!(news, News::End(_));
        if send.send(news).is_err() || over {
            return;
        }
        std::thread::sleep(EVERY);
    }
}

struct View {
    /// In place.
    painted: bool,
    shown: Option<(String, Time, Instant)>,
    trouble: Option<String>,
    /// That it is old, where it can't be painted.
    told: bool,
}

impl View {
    fn frame(&self) -> Result<(), Fail> {
        let Some((text, at, since)) = &self.shown else { return Ok(()) };
        let style = Style::of_stdout();
        if !self.painted {
            println!("{}\n", safe::lines(text, style.is_coloured()));
            return flush();
        }
        let (words, ink) = match old(since.elapsed()) {
            None if self.trouble.is_none() => (format!("as of {}", time::clock(*at)), Ink::Dim),
            _ => (self.stale(*at, since.elapsed()), Ink::Red),
        };
        let text = format!("{}\n{text}", style.paint(ink, &words));
        let text = safe::lines(&text, style.is_coloured());
        // Home, the frame with each line cleared to its end, then clear what is below.
        print!("\x1b[H{}\x1b[K\n\x1b[J", text.replace('\n', "\x1b[K\n"));
        flush()
    }

    /// Nothing new came.
    fn age(&mut self) -> Result<(), Fail> {
        if self.painted {
            return self.frame();
        }
        let Some((_, at, since)) = &self.shown else { return Ok(()) };
        let is_old = self.trouble.is_some() || old(since.elapsed()).is_some();
        if is_old && !self.told {
            complain(&format!("tutti: {}", self.stale(*at, since.elapsed())));
            self.told = true;
        }
        Ok(())
    }

    fn stale(&self, at: Time, age: Duration) -> String {
        let why = self.trouble.as_deref().unwrap_or("the controller does not answer");
        let age = time::short(Span::secs(age.as_secs()));
        format!("! shown is {}, {age} old: {}", time::clock(at), crate::show::harmless(why))
    }
}

fn old(age: Duration) -> Option<Span> {
    Some(Span(age.as_millis() as u64)).filter(|age| *age > OLD)
}

fn flush() -> Result<(), Fail> {
    std::io::stdout().flush().map_err(|e| Fail::new(format!("can't write: {e}")))
}
