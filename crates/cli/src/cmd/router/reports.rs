//! What a router says of itself: once a second, on a connection of its own.

use std::sync::{Arc, PoisonError, RwLock, mpsc};
use std::time::{Duration, Instant};

use tutti_model::RouterReport;
use tutti_serve::Handle;
use tutti_wire::client::Client;

use super::contact::Contact;
use super::feed::away;

const EVERY: Duration = Duration::from_secs(1);

pub struct Reports {
    pub client: Client,
    pub contact: Arc<Contact>,
    /// None: it is about to end.
    pub router: RwLock<Option<Handle>>,
    pub url: String,
    pub name: Option<String>,
}

impl Reports {
    /// Until the end.
    pub fn run(&self) {
        let mut next = Instant::now();
        while let Some(report) = self.look() {
            self.tell(&report);
            next += EVERY;
            // After an answer that took long there is nothing to catch up on.
            next = next.max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    fn look(&self) -> Option<RouterReport> {
        let router = self.router.read().unwrap_or_else(PoisonError::into_inner);
        let report = router.as_ref()?.report();
        let router = match &self.name {
            // It is another one after a restart, whatever it is called.
            Some(name) => format!("{name}-{}", report.router),
            None => report.router,
        };
        Some(RouterReport { router, address: self.url.clone(), ..report })
    }

    fn tell(&self, report: &RouterReport) {
        match self.client.router_report(report) {
            Ok(_) => {
                if self.contact.answered() {
                    tracing::info!("the controller answers again");
                }
            }
            Err(error) => away(&self.contact, &error),
        }
    }

    /// The router to be ended, and a word when the last report has arrived.
    pub fn end(self: &Arc<Self>) -> (Option<Handle>, mpsc::Receiver<()>) {
        let last = self.look();
        let router = self.router.write().unwrap_or_else(PoisonError::into_inner).take();
        let (done, told) = mpsc::channel();
        if let Some(report) = last.filter(|_| self.contact.is_here()) {
            let this = Arc::clone(self);
            std::thread::spawn(move || {
                this.tell(&report);
                let _ = done.send(());
            });
        }
        (router, told)
    }
}
