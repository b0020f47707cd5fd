//! Tables come by long poll, on a thread and a connection of their own, so that a slow answer holds up
//! nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tutti_model::RouteTable;
use tutti_wire::api::RoutesQuery;
use tutti_wire::client::{Client, ClientError};

use super::contact::Contact;
use crate::fail::chain;

/// How long the controller may keep a question for a newer table.
const WAIT_SECONDS: u64 = 20;
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A controller that answers at once though nothing is new is not asked again at once.
const BREATH: Duration = Duration::from_millis(200);

pub struct Feed {
    pub client: Client,
    pub tables: watch::Sender<Arc<RouteTable>>,
    pub contact: Arc<Contact>,
}

impl Feed {
    /// One question; says whether the answer is news. `wait`: for something newer.
    pub fn ask(&self, wait: bool) -> Result<bool, ClientError> {
        let known = self.tables.borrow().version;
        let query = match wait {
            true => RoutesQuery { after: Some(known), seconds: Some(WAIT_SECONDS) },
            false => RoutesQuery::default(),
        };
        let table = self.client.routes(&query)?;
        if self.contact.answered() {
            tracing::info!(version = table.version, "the controller answers again");
        }
        Ok(self.take(table))
    }

    fn take(&self, table: RouteTable) -> bool {
        if **self.tables.borrow() == table {
            return false;
        }
        tracing::debug!(version = table.version, endpoints = table.endpoints.len(), "new table");
        self.tables.send_replace(Arc::new(table));
        true
    }

    /// For ever.
    pub fn run(self) {
        let mut pause = PAUSE_FIRST;
        loop {
            let began = Instant::now();
            match self.ask(true) {
                Ok(news) => {
                    pause = PAUSE_FIRST;
                    if !news {
                        std::thread::sleep(BREATH.saturating_sub(began.elapsed()));
                    }
                }
                Err(error) => {
                    away(&self.contact, &error);
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }
}

pub fn away(contact: &Contact, error: &ClientError) {
    if contact.failed() {
        let why = chain(error);
        tracing::warn!(%why, "no word from the controller; going on with what is known");
    }
}
