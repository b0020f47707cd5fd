//! The driver's own events, heard on a thread of its own, since a driver may hang. After an error it is
//! listened to again: a GPU that is lost takes the others along.

use std::error::Error;
use std::io;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tutti_gpu::health::klog::Event;

use crate::node::chain;

/// Until the next try.
pub const PAUSE: Duration = Duration::from_secs(30);

/// Told of every event, and of none when it begins to listen and now and then; says whether anybody
/// still wants to hear.
pub type Hear<'a> = &'a mut dyn FnMut(Option<Event>) -> bool;

pub struct DriverEvents {
    heard: UnboundedReceiver<Heard>,
    /// In words. Err: why nothing is heard now.
    state: Result<String, String>,
}

enum Heard {
    Listening,
    Event(Event),
    Deaf(String),
}

impl DriverEvents {
    /// `listen` returns only after an error, or when nobody wants to hear.
    pub fn start<E: Error + 'static>(
        listen: impl FnMut(Hear<'_>) -> Result<(), E> + Send + 'static,
        pause: Duration,
    ) -> io::Result<DriverEvents> {
        let (out, heard) = unbounded_channel();
        let run = move || listen_for_ever(listen, &out, pause);
        std::thread::Builder::new().name("tutti-xid".to_owned()).spawn(run)?;
        Ok(DriverEvents { heard, state: Err("it is only beginning to listen".to_owned()) })
    }

    pub async fn next(&mut self) -> Event {
        loop {
            match self.heard.recv().await {
                Some(Heard::Event(event)) => return event,
                Some(Heard::Listening) => self.state = Ok("listening".to_owned()),
                Some(Heard::Deaf(why)) => self.state = Err(why),
                None => {
                    self.state = Err("the thread that listens has ended".to_owned());
                    return std::future::pending().await;
                }
            }
        }
    }

    pub fn state(&self) -> &Result<String, String> {
        &self.state
    }
}

fn listen_for_ever<E: Error + 'static>(
    mut listen: impl FnMut(Hear<'_>) -> Result<(), E>,
    out: &UnboundedSender<Heard>,
    pause: Duration,
) {
    let mut said = String::new();
    loop {
        let mut listened = false;
        let listening = listen(&mut |event| {
            listened = true;
            out.send(event.map_or(Heard::Listening, Heard::Event)).is_ok()
        });
        let Err(error) = listening else { return };
        let why = chain(&error);
        // The same again and again is said once.
        if listened || why != said {
            tracing::error!("the driver's events are not heard, trying again: {why}");
            said.clone_from(&why);
        }
        if out.send(Heard::Deaf(why)).is_err() {
            return;
        }
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(xid: u32) -> Event {
        let (process, recovery) = (None, None);
        Event::Xid { pci: "0000:1b:00".into(), xid, process, recovery, rest: String::new() }
    }

    /// Hears one event, then fails; on the third try it has nothing more to say.
    #[tokio::test]
    async fn an_error_is_not_the_end_of_listening() {
        let mut tries = 0;
        let listen = move |hear: Hear<'_>| {
            tries += 1;
            hear(None);
            match tries {
                3 => Ok(()),
                n => {
                    hear(Some(xid(n)));
                    Err(io::Error::other("GPU is lost"))
                }
            }
        };
        let mut events = DriverEvents::start(listen, Duration::ZERO).unwrap();
        assert!(events.state().is_err(), "it has not begun");
        assert_eq!(events.next().await, xid(1));
        assert_eq!(events.state(), &Ok("listening".to_owned()));
        assert_eq!(events.next().await, xid(2));
        let over = tokio::time::timeout(Duration::from_secs(30), async {
            while events.state() != &Err("the thread that listens has ended".to_owned()) {
                tokio::select! {
                    biased;
                    event = events.next() => panic!("{event:?}"),
                    () = tokio::task::yield_now() => {}
                }
            }
        });
        assert!(over.await.is_ok());
    }

    #[tokio::test]
    async fn why_nothing_is_heard_is_told() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let mut tries = 0;
        let listen = move |hear: Hear<'_>| {
            tries += 1;
            if tries == 1 {
                return Err(io::Error::other("no driver"));
            }
            // Not before the test has seen that.
            let _ = wait.recv();
            hear(Some(xid(79)));
            Ok(())
        };
        let mut events = DriverEvents::start(listen, Duration::ZERO).unwrap();
        while events.state() != &Err("no driver".to_owned()) {
            tokio::select! {
                biased;
                event = events.next() => panic!("{event:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
        go.send(()).unwrap();
        assert_eq!(events.next().await, xid(79));
    }
}
