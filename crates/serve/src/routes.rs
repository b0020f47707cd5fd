//! The table as requests look things up in it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tutti_model::{Access, EndpointRoute, RouteTable};

use crate::access::{Caller, Key};
use crate::desk::Desk;

/// One endpoint: what the table says, and where its requests are counted and wait.
pub struct Entry {
    pub route: EndpointRoute,
    pub desk: Arc<Desk>,
}

impl Entry {
    pub fn is_open(&self) -> bool {
        self.route.access == Access::Open
    }
}

/// A version of the table. It is replaced as a whole; what lives longer is behind `Arc`s.
#[derive(Default)]
pub struct Routes {
    pub version: u64,
    pub entries: Vec<Arc<Entry>>,
    /// By name, and by the models that it goes by.
    names: HashMap<String, usize>,
    pub keys: HashMap<String, Arc<Key>>,
    /// Some endpoint may be asked by anybody.
    pub any_open: bool,
    next_number: u32,
}

impl Routes {
    /// Desks and keys that stay are those of `old`.
    pub fn new(table: &RouteTable, old: &Routes, now: Instant) -> Routes {
        let mut routes =
            Routes { version: table.version, next_number: old.next_number, ..Routes::default() };
        for route in &table.endpoints {
            let desk = match old.named(&route.name).filter(|e| e.route.name == route.name) {
                Some(entry) => entry.desk.clone(),
                None => Arc::new(Desk::new(route, now)),
            };
            desk.update(route, now);
            routes.any_open |= route.access == Access::Open;
            routes.entries.push(Arc::new(Entry { route: route.clone(), desk }));
        }
        routes.add_names();
        for key in &table.keys {
            routes.next_number = routes.next_number.max(1);
            let new = Key::new(key, old.keys.get(&key.id).map(|k| &**k), routes.next_number, now);
            routes.next_number += 1;
            routes.keys.insert(key.id.clone(), Arc::new(new));
        }
        for entry in &old.entries {
            let stays = |e: &Arc<Entry>| Arc::ptr_eq(&e.desk, &entry.desk);
            if !routes.entries.iter().any(stays) {
                entry.desk.close(&entry.route, now);
            }
        }
        routes
    }

    /// Endpoints' own names go before others' models.
    fn add_names(&mut self) {
        for (at, entry) in self.entries.iter().enumerate() {
            self.names.insert(entry.route.name.clone(), at);
        }
        for (at, entry) in self.entries.iter().enumerate() {
            for model in &entry.route.models {
                self.names.entry(model.clone()).or_insert(at);
            }
        }
    }

    pub fn named(&self, name: &str) -> Option<&Arc<Entry>> {
        self.names.get(name).map(|&at| &self.entries[at])
    }

    /// All names that this caller may ask for, endpoints' own before models.
    pub fn visible<'a>(&'a self, caller: &'a Caller) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        let seen = self.entries.iter().filter(|e| caller.may_see(&e.route.name, e.is_open()));
        seen.flat_map(|entry| {
            let models = entry.route.models.iter().map(String::as_str);
            std::iter::once(entry.route.name.as_str()).chain(models).map(move |n| (n, &**entry))
        })
    }
}
