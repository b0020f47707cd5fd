//! What a router says of itself: once a second, on a connection of its own.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use tutti_model::RouterReport;
use tutti_serve::Reporter;
use tutti_wire::client::Client;

use super::contact::Contact;
use super::feed::away;

const EVERY: Duration = Duration::from_secs(1);

pub struct Reports {
    pub client: Client,
    pub contact: Arc<Contact>,
    pub router: Reporter,
    pub url: String,
    pub name: Option<String>,
    /// One report at a time: an older one that came after a newer would say that counts fell.
    pub turn: Mutex<()>,
}

impl Reports {
    /// As long as there is a process.
    pub fn run(&self) {
        let mut next = Instant::now();
        loop {
            self.tell();
            next += EVERY;
            // After an answer that took long there is nothing to catch up on.
            next = next.max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    fn look(&self) -> RouterReport {
        let report = self.router.report();
        let router = match &self.name {
            // It is another one after a restart, whatever it is called.
            Some(name) => format!("{name}-{}", report.router),
            None => report.router,
        };
        RouterReport { router, address: self.url.clone(), ..report }
    }

    fn tell(&self) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        match self.client.router_report(&self.look()) {
            Ok(_) => {
                if self.contact.answered() {
                    tracing::info!("the controller answers again");
                }
            }
            Err(error) => away(&self.contact, &error),
        }
    }

    /// The last report, which has all that was answered to the end. A word comes when it has arrived.
    pub fn end(self: &Arc<Self>) -> mpsc::Receiver<()> {
        let (done, told) = mpsc::channel();
        if self.contact.is_here() {
            let this = Arc::clone(self);
            std::thread::spawn(move || {
                this.tell();
                let _ = done.send(());
            });
        }
        told
    }
}
