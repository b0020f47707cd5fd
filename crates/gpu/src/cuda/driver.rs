//! `libcuda.so.1`, and the few functions of it that are needed. Only the process that makes the calls
//! loads it: it keeps threads and state of its own.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::time::Duration;

use libloading::Library;

use super::{Checkpointer, CudaError, GpuUuid, Move, ProcessState};

/// `CUDA_ERROR_NOT_READY`: what a lock says that ran out of time.
pub(super) const NOT_READY: c_int = 600;

/// `CUcheckpointLockArgs`.
#[repr(C)]
struct LockArgs {
    timeout_ms: c_uint,
    reserved0: c_uint,
    reserved1: [u64; 7],
}

/// `CUcheckpointGpuPair`.
#[repr(C)]
struct GpuPair {
    old: [u8; 16],
    new: [u8; 16],
}

/// `CUcheckpointRestoreArgs`: 64 bytes in every version, all zero but for the pairs.
#[repr(C)]
struct RestoreArgs {
    pairs: *mut GpuPair,
    count: c_uint,
    reserved: [c_uint; 13],
}

const _: () = assert!(size_of::<LockArgs>() == 64 && size_of::<RestoreArgs>() == 64);

type Status = c_int;
type Simple = unsafe extern "C" fn(c_int, *mut c_void) -> Status;

/// The driver, ready to be asked.
pub struct Driver {
    get_version: unsafe extern "C" fn(*mut c_int) -> Status,
    init: unsafe extern "C" fn(c_uint) -> Status,
    error_name: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
    error_string: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
    get_state: unsafe extern "C" fn(c_int, *mut c_int) -> Status,
    lock: Simple,
    checkpoint: Simple,
    restore: Simple,
    unlock: Simple,
    /// The functions above live as long as this.
    _library: Library,
}

impl Driver {
    /// Loads the library and finds the functions; starts nothing.
    pub fn load() -> Result<Driver, CudaError> {
        // SAFETY: the driver's library has no conditions on being loaded.
        let library = unsafe { Library::new("libcuda.so.1") }.map_err(CudaError::NoLibrary)?;
        /// SAFETY: `T` is the type of the function of that name in `cuda.h`.
        unsafe fn find<T: Copy>(library: &Library, name: &'static str) -> Result<T, CudaError> {
            // SAFETY: as above.
            let found = unsafe { library.get::<T>(name.as_bytes()) };
            found.map(|symbol| *symbol).map_err(|_| CudaError::TooOld(name))
        }
        // SAFETY: the types are those of `cuda.h`, with structures passed as untyped pointers.
        unsafe {
            Ok(Driver {
                get_version: find(&library, "cuDriverGetVersion")?,
                init: find(&library, "cuInit")?,
                error_name: find(&library, "cuGetErrorName")?,
                error_string: find(&library, "cuGetErrorString")?,
                get_state: find(&library, "cuCheckpointProcessGetState")?,
                lock: find(&library, "cuCheckpointProcessLock")?,
                checkpoint: find(&library, "cuCheckpointProcessCheckpoint")?,
                restore: find(&library, "cuCheckpointProcessRestore")?,
                unlock: find(&library, "cuCheckpointProcessUnlock")?,
                _library: library,
            })
        }
    }

    /// Once, before anything else but [`Driver::version`].
    pub fn start(&self) -> Result<(), CudaError> {
        // SAFETY: 0 is the only value that is allowed.
        self.check("cuInit", unsafe { (self.init)(0) })
    }

    /// The newest CUDA that this driver can do: 13000 is 13.0.
    pub fn version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: a valid place to write to.
        self.check("cuDriverGetVersion", unsafe { (self.get_version)(&mut version) })?;
        Ok(version)
    }

    fn check(&self, call: &'static str, code: Status) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let name = self.text(self.error_name, code).unwrap_or_else(|| "unknown error".to_owned());
        let words = self.text(self.error_string, code).unwrap_or_else(|| "no words".to_owned());
        Err(CudaError::Driver { call, code, name, words })
    }

    fn text(
        &self,
        get: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
        code: Status,
    ) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: a valid place to write to. What comes back is a constant of the library.
        unsafe {
            let found = get(code, &mut text) == 0 && !text.is_null();
            found.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }
}

impl Checkpointer for Driver {
    fn state(&self, pid: i32) -> Result<ProcessState, CudaError> {
        let mut state = 0;
        // SAFETY: a valid place to write to.
        self.check("cuCheckpointProcessGetState", unsafe { (self.get_state)(pid, &mut state) })?;
        Ok(ProcessState::from_raw(state))
    }

    fn lock(&self, pid: i32, within: Duration) -> Result<(), CudaError> {
        let timeout_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let mut args = LockArgs { timeout_ms, reserved0: 0, reserved1: [0; 7] };
        let args = std::ptr::from_mut(&mut args).cast();
        // SAFETY: the arguments have the layout of `cuda.h` and outlive the call.
        self.check("cuCheckpointProcessLock", unsafe { (self.lock)(pid, args) })
    }

    fn checkpoint(&self, pid: i32) -> Result<(), CudaError> {
        // SAFETY: no arguments is a valid choice.
        let code = unsafe { (self.checkpoint)(pid, std::ptr::null_mut()) };
        self.check("cuCheckpointProcessCheckpoint", code)
    }

    fn restore(&self, pid: i32, moves: &[Move]) -> Result<(), CudaError> {
        let bytes = |uuid: GpuUuid| uuid.0;
        let mut pairs: Vec<GpuPair> =
            moves.iter().map(|m| GpuPair { old: bytes(m.from), new: bytes(m.to) }).collect();
        let count = pairs.len() as c_uint;
        let mut args = RestoreArgs { pairs: pairs.as_mut_ptr(), count, reserved: [0; 13] };
        // A driver before CUDA 13 takes no arguments, and all it can do is the same GPUs.
        let args = match moves {
            [] => std::ptr::null_mut(),
            _ => std::ptr::from_mut(&mut args).cast(),
        };
        // SAFETY: the arguments have the layout of `cuda.h`; they and the pairs outlive the call.
        self.check("cuCheckpointProcessRestore", unsafe { (self.restore)(pid, args) })
    }

    fn unlock(&self, pid: i32) -> Result<(), CudaError> {
        // SAFETY: no arguments is a valid choice.
        let code = unsafe { (self.unlock)(pid, std::ptr::null_mut()) };
        self.check("cuCheckpointProcessUnlock", code)
    }
}
