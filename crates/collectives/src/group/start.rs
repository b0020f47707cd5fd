//! Operations that are started now and waited for later. They own their buffer meanwhile.

use super::Group;
use crate::element::{Element, Op, bytes_of, bytes_of_mut};
use crate::error::{Error, Result, Verb};
use crate::health::Wait;
use crate::pending::{Pending, Watch, Worker, pair};
use crate::span::Span;

impl Group {
    /// Starts [`Group::all_reduce`]. It runs after everything that this rank has started or called
    /// in this group before, on a thread of the group.
    pub fn start_all_reduce<T: Element>(&self, mut buffer: Vec<T>, op: Op) -> Pending<Vec<T>> {
        self.start(Verb::AllReduce, move |group, ticket| {
            group.all_reduce_at(ticket, &mut buffer, op)?;
            Ok(buffer)
        })
    }

    /// Starts [`Group::reduce_scatter`]; this rank's part comes back.
    pub fn start_reduce_scatter<T: Element>(&self, input: Vec<T>, op: Op) -> Pending<Vec<T>> {
        let n = self.size();
        self.start(Verb::ReduceScatter, move |group, ticket| {
            let mut output = vec![T::ZERO; input.len() / n];
            group.reduce_scatter_at(ticket, &input, &mut output, op)?;
            Ok(output)
        })
    }

    /// Starts [`Group::all_gather`]; everybody's input comes back.
    pub fn start_all_gather<T: Element>(&self, input: Vec<T>) -> Pending<Vec<T>> {
        let n = self.size();
        self.start(Verb::AllGather, move |group, ticket| {
            let mut output = vec![T::ZERO; input.len() * n];
            group.all_gather_at(ticket, &input, &mut output)?;
            Ok(output)
        })
    }

    /// Starts [`Group::send`]; the buffer comes back when it may be used again.
    pub fn start_send<T: Element>(&self, data: Vec<T>, to: usize, tag: u64) -> Pending<Vec<T>> {
        let (promise, pending) = pair(Verb::Send, None);
        let ready = self.address(Verb::Send, to, tag).and_then(|to| {
            let way = self.inner.shared.outbox.way(to.from);
            way.worker()?;
            Ok((to, way))
        });
        match ready {
            Err(e) => promise.keep(Err(e)),
            Ok((to, way)) => {
                let (ticket, shared) = (way.ticket(), std::sync::Arc::clone(&self.inner.shared));
                let job = std::sync::Arc::clone(&way);
                let send = move || {
                    let sent = job.send(&shared, ticket, to, bytes_of(&data));
                    promise.keep(sent.map(|()| data));
                };
                way.worker().expect("started above").push(send);
            }
        }
        pending
    }

    /// Starts [`Group::recv`] into `buffer`, which comes back filled.
    pub fn start_recv<T: Element>(
        &self,
        mut buffer: Vec<T>,
        from: usize,
        tag: u64,
    ) -> Pending<Vec<T>> {
        let address = match self.address(Verb::Recv, from, tag) {
            Ok(address) => address,
            Err(e) => {
                let (promise, pending) = pair(Verb::Recv, None);
                promise.keep(Err(e));
                return pending;
            }
        };
        let shared = &self.inner.shared;
        let watch = Watch {
            health: std::sync::Arc::clone(&shared.health),
            wait: Wait { group: address.group, seq: tag, on: address.from },
            limit: shared.config.op_timeout,
        };
        let (promise, pending) = pair(Verb::Recv, Some(watch));
        // The vector's memory stays where it is when the vector itself moves into the closure.
        let span = Span::of(bytes_of_mut(&mut buffer));
        let done = move |result: Result<()>| promise.keep(result.map(|()| buffer));
        shared.inbox.post(address, span, Box::new(done));
        pending
    }

    fn start<T: Send + 'static>(
        &self,
        verb: Verb,
        run: impl FnOnce(&Group, crate::pending::Ticket) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (promise, pending) = pair(verb, None);
        match self.worker() {
            Err(e) => promise.keep(Err(e)),
            Ok(worker) => {
                let (group, ticket) = (self.clone(), self.ticket());
                worker.push(move || {
                    let result = run(&group, ticket);
                    drop(group);
                    promise.keep(result);
                });
            }
        }
        pending
    }

    fn worker(&self) -> std::result::Result<&Worker, Error> {
        if self.inner.worker.get().is_none() {
            // Two may start at once; the second thread ends when its sender is dropped.
            let _ = self.inner.worker.set(Worker::start("tutti-group")?);
        }
        Ok(self.inner.worker.get().expect("just set"))
    }
}
