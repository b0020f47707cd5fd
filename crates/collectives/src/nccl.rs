//! Collective operations on GPU memory through NCCL, which is loaded when it is asked for.
//!
//! Nothing of CUDA is needed to build this, or to run where it is not used. Buffers are device
//! addresses and operations are queued on a stream, as NCCL has it; [`Comm::wait`] adds what NCCL
//! lacks: it ends with an error that names the rank when one dies or hangs.

mod cuda;
mod library;

use std::ffi::c_void;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::element::{DType, Op};
use crate::error::{Error, Result, Verb};
use crate::group::Group;

pub use cuda::{Cuda, DeviceBuffer, Stream};
pub use library::Nccl;
use library::{Handle, Reduction, UniqueId};

/// The NCCL counterpart of a [`Group`]: same members, same order.
pub struct Comm {
    nccl: Arc<Nccl>,
    handle: Handle,
    group: Group,
}

// SAFETY: NCCL allows calls from any thread, one at a time per communicator; `Comm` is not Sync.
unsafe impl Send for Comm {}

/// Device memory as NCCL takes it. The caller answers for it being there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    fn raw(self) -> *mut c_void {
        self.0 as *mut c_void
    }
}

impl Comm {
    /// Called by all members of the group, each with its own device current on this thread.
    pub fn new(nccl: Arc<Nccl>, group: &Group) -> Result<Self> {
        let mut id = UniqueId([0; 128]);
        if group.rank() == 0 {
            id = nccl.unique_id()?;
        }
        group.broadcast(&mut id.0, 0)?;
        let handle = nccl.init(group.size(), id, group.rank())?;
        Ok(Self { nccl, handle, group: group.clone() })
    }

    /// `recv` becomes the reduction of everybody's `send`; they may be the same.
    ///
    /// # Safety
    /// Both must be `count` elements of device memory, left alone until the stream has come past.
    pub unsafe fn all_reduce(
        &self,
        buffers: (DevicePtr, DevicePtr),
        count: usize,
        kind: (DType, Op),
        stream: &Stream,
    ) -> Result<()> {
        let call = (self.nccl.api.all_reduce, "ncclAllReduce");
        // SAFETY: the caller's.
        unsafe { self.reduction(call, buffers, count, kind, stream) }
    }

    /// `send` is one part of `count` elements per member; `recv` the reduction of part `rank()`.
    ///
    /// # Safety
    /// As [`Comm::all_reduce`].
    pub unsafe fn reduce_scatter(
        &self,
        buffers: (DevicePtr, DevicePtr),
        count: usize,
        kind: (DType, Op),
        stream: &Stream,
    ) -> Result<()> {
        let call = (self.nccl.api.reduce_scatter, "ncclReduceScatter");
        // SAFETY: the caller's.
        unsafe { self.reduction(call, buffers, count, kind, stream) }
    }

    /// # Safety
    /// As [`Comm::all_reduce`].
    unsafe fn reduction(
        &self,
        (call, name): (Reduction, &'static str),
        (send, recv): (DevicePtr, DevicePtr),
        count: usize,
        (dtype, op): (DType, Op),
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, op) = (type_code(dtype), op_code(op));
        // SAFETY: the caller's.
        let code =
            unsafe { call(send.raw(), recv.raw(), count, dtype, op, self.handle, stream.raw()) };
        self.nccl.check(name, code)
    }

    /// `recv` becomes everybody's `count` elements of `send`, in order.
    ///
    /// # Safety
    /// As [`Comm::all_reduce`].
    pub unsafe fn all_gather(
        &self,
        (send, recv): (DevicePtr, DevicePtr),
        count: usize,
        dtype: DType,
        stream: &Stream,
    ) -> Result<()> {
        let call = self.nccl.api.all_gather;
        // SAFETY: the caller's.
        let code = unsafe {
            call(send.raw(), recv.raw(), count, type_code(dtype), self.handle, stream.raw())
        };
        self.nccl.check("ncclAllGather", code)
    }

    /// Everybody's `buffer` becomes that of member `root`.
    ///
    /// # Safety
    /// As [`Comm::all_reduce`].
    pub unsafe fn broadcast(
        &self,
        buffer: DevicePtr,
        count: usize,
        dtype: DType,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let (call, at) = (self.nccl.api.broadcast, buffer.raw());
        let root = root as i32;
        // SAFETY: the caller's.
        let code =
            unsafe { call(at, at, count, type_code(dtype), root, self.handle, stream.raw()) };
        self.nccl.check("ncclBroadcast", code)
    }

    /// # Safety
    /// As [`Comm::all_reduce`].
    pub unsafe fn send(
        &self,
        buffer: DevicePtr,
        count: usize,
        dtype: DType,
        to: usize,
        stream: &Stream,
    ) -> Result<()> {
        let call = self.nccl.api.send;
        let (dtype, to) = (type_code(dtype), to as i32);
        // SAFETY: the caller's.
        let code = unsafe { call(buffer.raw(), count, dtype, to, self.handle, stream.raw()) };
        self.nccl.check("ncclSend", code)
    }

    /// # Safety
    /// As [`Comm::all_reduce`].
    pub unsafe fn recv(
        &self,
        buffer: DevicePtr,
        count: usize,
        dtype: DType,
        from: usize,
        stream: &Stream,
    ) -> Result<()> {
        let call = self.nccl.api.recv;
        let (dtype, from) = (type_code(dtype), from as i32);
        // SAFETY: the caller's.
        let code = unsafe { call(buffer.raw(), count, dtype, from, self.handle, stream.raw()) };
        self.nccl.check("ncclRecv", code)
    }

    /// Operations issued by `body` start together: a send and its receive must, on one device.
    pub fn together(&self, body: impl FnOnce() -> Result<()>) -> Result<()> {
        // SAFETY: no arguments.
        self.nccl.check("ncclGroupStart", unsafe { (self.nccl.api.group_start)() })?;
        let result = body();
        // SAFETY: no arguments; every start needs its end.
        let ended = self.nccl.check("ncclGroupEnd", unsafe { (self.nccl.api.group_end)() });
        result.and(ended)
    }

    /// What NCCL's own threads have found since.
    pub fn check(&self) -> Result<()> {
        let mut code = 0;
        // SAFETY: a live communicator and a place for the answer.
        let asked = unsafe { (self.nccl.api.async_error)(self.handle, &mut code) };
        self.nccl.check("ncclCommGetAsyncError", asked)?;
        self.nccl.check("an NCCL operation", code)
    }

    /// Waits until the stream has come past everything queued. When a rank dies or hangs, or NCCL
    /// finds an error, the communicator is aborted, so that the stream ends, and the error returned.
    pub fn wait(self, stream: &Stream) -> Result<Self> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(10);
        loop {
            if stream.is_done()? {
                return Ok(self);
            }
            let wrong = self.check().and_then(|()| self.group.check(Verb::AllReduce));
            let late = start.elapsed() > self.group.op_timeout();
            if let Err(error) = wrong {
                self.abort();
                return Err(error);
            }
            if late {
                self.abort();
                let what = format!("the stream did not end within {:?}", start.elapsed());
                return Err(Error::Device { call: "an NCCL operation", what });
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    /// Ends everything under way. The other members must do the same.
    pub fn abort(mut self) {
        let handle = std::mem::replace(&mut self.handle, Handle(std::ptr::null_mut()));
        // SAFETY: a live communicator, not used afterwards. There is nothing to do if it fails.
        let _ = unsafe { (self.nccl.api.abort)(handle) };
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if !self.handle.0.is_null() {
            // SAFETY: a live communicator, not used afterwards. There is nothing to do if it fails.
            let _ = unsafe { (self.nccl.api.destroy)(self.handle) };
        }
    }
}

/// `ncclDataType_t`.
fn type_code(dtype: DType) -> i32 {
    match dtype {
        DType::I8 => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::Bf16 => 9,
    }
}

/// `ncclRedOp_t`; 1 is the product, which we do not offer.
fn op_code(op: Op) -> i32 {
    match op {
        Op::Sum => 0,
        Op::Max => 2,
        Op::Min => 3,
        Op::Mean => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_the_error_says_which_one_and_what_to_do() {
        match Nccl::load() {
            Ok(nccl) => assert!(nccl.version() > 2000, "{}", nccl.version()),
            Err(e) => {
                let message = e.to_string();
                assert!(message.contains("libnccl.so.2"), "{message}");
                assert!(message.contains("TUTTI_NCCL"), "{message}");
            }
        }
    }

    #[test]
    fn every_type_has_its_own_code() {
        let mut codes: Vec<i32> = DType::ALL.into_iter().map(type_code).collect();
        codes.sort_unstable();
        assert_eq!(codes, (0..10).collect::<Vec<_>>());
    }
}
