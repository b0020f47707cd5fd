//! The little of the CUDA driver that is needed around NCCL: a context, memory, a stream.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;

use libloading::Library;

use super::DevicePtr;
use super::library::symbol;
use crate::element::{Element, bytes_of, bytes_of_mut};
use crate::error::{Error, Result};

const NAME: &str = "libcuda.so.1";
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;

struct Api {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    device_get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    context_retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int,
    context_set: unsafe extern "C" fn(*mut c_void) -> c_int,
    alloc: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    free: unsafe extern "C" fn(u64) -> c_int,
    upload: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    download: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
    stream_create: unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int,
    stream_query: unsafe extern "C" fn(*mut c_void) -> c_int,
    stream_destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
}

/// The driver, with one device current on the thread that loaded it.
pub struct Cuda {
    api: Api,
    context: *mut c_void,
    // The functions are of use only while it is loaded.
    _library: Library,
}

// SAFETY: the driver allows calls from any thread.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Loads the driver, and makes device `ordinal` (of those in `CUDA_VISIBLE_DEVICES`) current.
    pub fn load(ordinal: usize) -> Result<Arc<Self>> {
        // SAFETY: the driver's initialisers do nothing that could disturb this program.
        let library = unsafe { Library::new(NAME) }
            .map_err(|e| Error::NoLibrary { library: NAME, what: e.to_string() })?;
        let mut cuda = Self { api: api(&library)?, context: null_mut(), _library: library };
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: places for the answers; the primary context is kept until the process ends.
        unsafe {
            cuda.check("cuInit", (cuda.api.init)(0))?;
            cuda.check("cuDeviceGet", (cuda.api.device_get)(&mut device, ordinal as c_int))?;
            let retained = (cuda.api.context_retain)(&mut context, device);
            cuda.check("cuDevicePrimaryCtxRetain", retained)?;
        }
        cuda.context = context;
        cuda.make_current()?;
        Ok(Arc::new(cuda))
    }

    /// Makes the device current on the calling thread.
    pub fn make_current(&self) -> Result<()> {
        // SAFETY: the primary context, which is never released.
        self.check("cuCtxSetCurrent", unsafe { (self.api.context_set)(self.context) })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: a place for the answer, which is a constant string or null.
        let text = unsafe {
            (self.api.error_name)(code, &mut name);
            if name.is_null() { c"unknown" } else { CStr::from_ptr(name) }
        };
        Err(Error::Device { call, what: format!("{} ({code})", text.to_string_lossy()) })
    }

    /// A buffer on the device with these contents.
    pub fn upload<T: Element>(self: &Arc<Self>, data: &[T]) -> Result<DeviceBuffer<T>> {
        let (mut at, bytes) = (0, size_of_val(data));
        // SAFETY: a place for the answer; then a copy of as many bytes as were allocated.
        unsafe {
            self.check("cuMemAlloc", (self.api.alloc)(&mut at, bytes.max(1)))?;
            let buffer =
                DeviceBuffer { cuda: Arc::clone(self), at, len: data.len(), of: PhantomData };
            let copied = (self.api.upload)(at, bytes_of(data).as_ptr().cast(), bytes);
            self.check("cuMemcpyHtoD", copied)?;
            Ok(buffer)
        }
    }

    pub fn stream(self: &Arc<Self>) -> Result<Stream> {
        let mut raw = null_mut();
        // Does not wait for the default stream.
        const NON_BLOCKING: c_uint = 1;
        // SAFETY: a place for the answer.
        let code = unsafe { (self.api.stream_create)(&mut raw, NON_BLOCKING) };
        self.check("cuStreamCreate", code)?;
        Ok(Stream { cuda: Arc::clone(self), raw })
    }
}

/// Device memory that is freed with it.
pub struct DeviceBuffer<T: Element> {
    cuda: Arc<Cuda>,
    at: u64,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Element> DeviceBuffer<T> {
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.at)
    }

    /// What is in it, once the streams that write to it are done.
    pub fn download(&self) -> Result<Vec<T>> {
        let mut data = vec![T::ZERO; self.len];
        let bytes = bytes_of_mut(&mut data);
        // SAFETY: as many bytes as were allocated.
        let code =
            unsafe { (self.cuda.api.download)(bytes.as_mut_ptr().cast(), self.at, bytes.len()) };
        self.cuda.check("cuMemcpyDtoH", code).map(|()| data)
    }
}

impl<T: Element> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by `upload`, and freed once. There is nothing to do if it fails.
        let _ = unsafe { (self.cuda.api.free)(self.at) };
    }
}

/// A queue of work on the device.
pub struct Stream {
    cuda: Arc<Cuda>,
    raw: *mut c_void,
}

impl Stream {
    pub(super) fn raw(&self) -> *mut c_void {
        self.raw
    }

    /// Whether everything queued has ended.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: a live stream.
        match unsafe { (self.cuda.api.stream_query)(self.raw) } {
            NOT_READY => Ok(false),
            code => self.cuda.check("cuStreamQuery", code).map(|()| true),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: a live stream, not used afterwards. There is nothing to do if it fails.
        let _ = unsafe { (self.cuda.api.stream_destroy)(self.raw) };
    }
}

fn api(l: &Library) -> Result<Api> {
    Ok(Api {
        init: symbol(l, "cuInit", NAME)?,
        device_get: symbol(l, "cuDeviceGet", NAME)?,
        context_retain: symbol(l, "cuDevicePrimaryCtxRetain", NAME)?,
        context_set: symbol(l, "cuCtxSetCurrent", NAME)?,
        alloc: symbol(l, "cuMemAlloc_v2", NAME)?,
        free: symbol(l, "cuMemFree_v2", NAME)?,
        upload: symbol(l, "cuMemcpyHtoD_v2", NAME)?,
        download: symbol(l, "cuMemcpyDtoH_v2", NAME)?,
        stream_create: symbol(l, "cuStreamCreate", NAME)?,
        stream_query: symbol(l, "cuStreamQuery", NAME)?,
        stream_destroy: symbol(l, "cuStreamDestroy_v2", NAME)?,
        error_name: symbol(l, "cuGetErrorName", NAME)?,
    })
}
