//! The functions of libnccl, found by name at run time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use libloading::Library;

use crate::error::{Error, Result};

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub [u8; 128]);

/// `ncclComm_t`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Handle(pub *mut c_void);

type Buffer = *mut c_void;
type CuStream = *mut c_void;
/// Of what is sent into what is received: elements, their type, the operation.
pub type Reduction =
    unsafe extern "C" fn(Buffer, Buffer, usize, c_int, c_int, Handle, CuStream) -> c_int;

pub(super) struct Api {
    pub get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub init_rank: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int,
    pub destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub abort: unsafe extern "C" fn(Handle) -> c_int,
    pub async_error: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    pub error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub group_start: unsafe extern "C" fn() -> c_int,
    pub group_end: unsafe extern "C" fn() -> c_int,
    pub all_reduce: Reduction,
    pub reduce_scatter: Reduction,
    pub all_gather: unsafe extern "C" fn(Buffer, Buffer, usize, c_int, Handle, CuStream) -> c_int,
    pub broadcast:
        unsafe extern "C" fn(Buffer, Buffer, usize, c_int, c_int, Handle, CuStream) -> c_int,
    pub send: unsafe extern "C" fn(Buffer, usize, c_int, c_int, Handle, CuStream) -> c_int,
    pub recv: unsafe extern "C" fn(Buffer, usize, c_int, c_int, Handle, CuStream) -> c_int,
}

/// NCCL, loaded.
pub struct Nccl {
    pub(super) api: Api,
    version: i32,
    // The functions are of use only while it is loaded.
    _library: Library,
}

/// Finds a function; its type is the caller's promise.
pub(super) fn symbol<T: Copy>(
    library: &Library,
    name: &'static str,
    of: &'static str,
) -> Result<T> {
    // SAFETY: the caller's type is that of the C declaration.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|s| *s).map_err(|e| Error::NoLibrary { library: of, what: e.to_string() })
}

const NAME: &str = "libnccl.so.2";

impl Nccl {
    /// Loads the library that `TUTTI_NCCL` names, else the system's.
    pub fn load() -> Result<Arc<Self>> {
        let path = std::env::var_os("TUTTI_NCCL").unwrap_or_else(|| NAME.into());
        // SAFETY: NCCL's initialisers do nothing that could disturb this program.
        let library = unsafe { Library::new(&path) }.map_err(|e| Error::NoLibrary {
            library: NAME,
            what: format!("{e}; TUTTI_NCCL may name the file"),
        })?;
        let api = api(&library)?;
        let mut version = 0;
        // SAFETY: a place for the answer.
        let code = unsafe { (api.get_version)(&mut version) };
        let nccl = Self { api, version, _library: library };
        nccl.check("ncclGetVersion", code)?;
        Ok(Arc::new(nccl))
    }

    /// 22703 is 2.27.3.
    pub fn version(&self) -> i32 {
        self.version
    }

    pub(super) fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: a place for the answer.
        let code = unsafe { (self.api.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", code).map(|()| id)
    }

    pub(super) fn init(&self, ranks: usize, id: UniqueId, rank: usize) -> Result<Handle> {
        let mut handle = Handle(std::ptr::null_mut());
        // SAFETY: a place for the answer; the id is plain data.
        let code = unsafe { (self.api.init_rank)(&mut handle, ranks as i32, id, rank as i32) };
        self.check("ncclCommInitRank", code).map(|()| handle)
    }

    /// 0 is success; 7 is an operation that has not ended yet, which is none either.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if matches!(code, 0 | 7) {
            return Ok(());
        }
        // SAFETY: returns a constant string for any number.
        let text = unsafe { CStr::from_ptr((self.api.error_string)(code)) };
        Err(Error::Device { call, what: format!("{} ({code})", text.to_string_lossy()) })
    }
}

fn api(l: &Library) -> Result<Api> {
    Ok(Api {
        get_version: symbol(l, "ncclGetVersion", NAME)?,
        get_unique_id: symbol(l, "ncclGetUniqueId", NAME)?,
        init_rank: symbol(l, "ncclCommInitRank", NAME)?,
        destroy: symbol(l, "ncclCommDestroy", NAME)?,
        abort: symbol(l, "ncclCommAbort", NAME)?,
        async_error: symbol(l, "ncclCommGetAsyncError", NAME)?,
        error_string: symbol(l, "ncclGetErrorString", NAME)?,
        group_start: symbol(l, "ncclGroupStart", NAME)?,
        group_end: symbol(l, "ncclGroupEnd", NAME)?,
        all_reduce: symbol(l, "ncclAllReduce", NAME)?,
        reduce_scatter: symbol(l, "ncclReduceScatter", NAME)?,
        all_gather: symbol(l, "ncclAllGather", NAME)?,
        broadcast: symbol(l, "ncclBroadcast", NAME)?,
        send: symbol(l, "ncclSend", NAME)?,
        recv: symbol(l, "ncclRecv", NAME)?,
    })
}
