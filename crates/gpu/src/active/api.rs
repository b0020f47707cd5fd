//! The part of `libcuda.so.1` that computes: devices, memory, kernels. Each call that fails names
//! itself and gives the driver's own words.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::cuda::{CudaError, GpuUuid};

type Status = c_int;
type Handle = *mut c_void;
/// An address on a GPU.
pub type Address = u64;

/// `CU_DEVICE_ATTRIBUTE_*`.
pub enum Attribute {
    Multiprocessors = 16,
    MemoryClockKhz = 36,
    MemoryBusBits = 37,
    CapabilityMajor = 75,
    CapabilityMinor = 76,
}

const PEER_ACCESS_ALREADY: Status = 704;
/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const JIT_LOG: c_int = 5;
const JIT_LOG_SIZE: c_int = 6;
const LOG_BYTES: usize = 4096;
const NAME_BYTES: usize = 256;

macro_rules! functions {
    ($($field:ident = $name:literal ( $($arg:ty),* );)*) => {
        /// The functions, by their names in the library.
        pub struct Api {
            $($field: unsafe extern "C" fn($($arg),*) -> Status,)*
            /// The functions above live as long as this.
            _library: Library,
        }

        impl Api {
            /// Loads the library and starts the driver.
            pub fn start() -> Result<Api, CudaError> {
                // SAFETY: the driver's library has no conditions on being loaded.
                let library =
                    unsafe { Library::new("libcuda.so.1") }.map_err(CudaError::NoLibrary)?;
                let api = Api {
                    // SAFETY: the types are those of `cuda.h`; handles are untyped pointers.
                    $($field: *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                        .map_err(|_| CudaError::Lacks($name))?,)*
                    _library: library,
                };
                // SAFETY: 0 is the only value that is allowed.
                api.check("cuInit", unsafe { (api.init)(0) })?;
                Ok(api)
            }
        }
    };
}

functions! {
    init = "cuInit"(c_uint);
    error_name = "cuGetErrorName"(Status, *mut *const c_char);
    error_string = "cuGetErrorString"(Status, *mut *const c_char);
    driver_version = "cuDriverGetVersion"(*mut c_int);
    device_count = "cuDeviceGetCount"(*mut c_int);
    device_get = "cuDeviceGet"(*mut c_int, c_int);
    device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_uuid = "cuDeviceGetUuid"(*mut [u8; 16], c_int);
    device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    can_access_peer = "cuDeviceCanAccessPeer"(*mut c_int, c_int, c_int);
    context_retain = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    context_release = "cuDevicePrimaryCtxRelease_v2"(c_int);
    context_set = "cuCtxSetCurrent"(Handle);
    context_sync = "cuCtxSynchronize"();
    enable_peer = "cuCtxEnablePeerAccess"(Handle, c_uint);
    memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    allocate = "cuMemAlloc_v2"(*mut Address, usize);
    free = "cuMemFree_v2"(Address);
    to_device = "cuMemcpyHtoD_v2"(Address, *const c_void, usize);
    to_host = "cuMemcpyDtoH_v2"(*mut c_void, Address, usize);
    on_device = "cuMemcpyDtoDAsync_v2"(Address, Address, usize, Handle);
    to_peer = "cuMemcpyPeerAsync"(Address, Handle, Address, Handle, usize, Handle);
    module_load = "cuModuleLoadDataEx"(
        *mut Handle, *const c_void, c_uint, *mut c_int, *mut *mut c_void
    );
    module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    launch = "cuLaunchKernel"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void
    );
    event_create = "cuEventCreate"(*mut Handle, c_uint);
    event_destroy = "cuEventDestroy_v2"(Handle);
    event_record = "cuEventRecord"(Handle, Handle);
    event_sync = "cuEventSynchronize"(Handle);
    event_elapsed = "cuEventElapsedTime"(*mut f32, Handle, Handle);
}

impl Api {
    fn check(&self, call: &'static str, code: Status) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let text = |get: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut text = std::ptr::null();
            // SAFETY: a valid place to write to. What comes back is a constant of the library.
            unsafe {
                let found = get(code, &mut text) == 0 && !text.is_null();
                found.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        let name = text(self.error_name).unwrap_or_else(|| "unknown error".to_owned());
        let words = text(self.error_string).unwrap_or_else(|| "no words".to_owned());
        Err(CudaError::Driver { call, code, name, words })
    }

    /// The newest CUDA that the driver can do: 13000 is 13.0.
    pub fn version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: a valid place to write to.
        self.check("cuDriverGetVersion", unsafe { (self.driver_version)(&mut version) })?;
        Ok(version)
    }

    pub fn device_count(&self) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: a valid place to write to.
        self.check("cuDeviceGetCount", unsafe { (self.device_count)(&mut count) })?;
        Ok(count)
    }

    /// A context on the device that this number has in this process.
    pub fn open(&self, ordinal: i32) -> Result<Context<'_>, CudaError> {
        let (mut device, mut handle) = (0, std::ptr::null_mut());
        // SAFETY: valid places to write to.
        unsafe {
            self.check("cuDeviceGet", (self.device_get)(&mut device, ordinal))?;
            let retained = (self.context_retain)(&mut handle, device);
            self.check("cuDevicePrimaryCtxRetain", retained)?;
        }
        Ok(Context { api: self, device, handle })
    }
}

/// What a kernel is given.
#[derive(Clone, Copy)]
pub enum Arg {
    Address(Address),
    Number(u32),
}

/// One device of this process. Its methods make it the current one of the calling thread first.
pub struct Context<'a> {
    api: &'a Api,
    device: c_int,
    handle: Handle,
}

// SAFETY: a context may be used from any thread, and the driver's functions are safe to call at once.
unsafe impl Send for Context<'_> {}
// SAFETY: as above.
unsafe impl Sync for Context<'_> {}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: it was retained once. What goes wrong here goes away with the process.
        unsafe { (self.api.context_release)(self.device) };
    }
}

impl<'a> Context<'a> {
    /// Makes it the one that libraries use when this thread calls them.
    pub fn current(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is a context that lives as long as this.
        self.api.check("cuCtxSetCurrent", unsafe { (self.api.context_set)(self.handle) })
    }

    /// "NVIDIA H100 80GB HBM3".
    pub fn name(&self) -> Result<String, CudaError> {
        let mut name = [0u8; NAME_BYTES];
        // SAFETY: a place as long as is said; the driver ends what it writes with a zero.
        let code = unsafe {
            (self.api.device_name)(name.as_mut_ptr().cast(), NAME_BYTES as c_int, self.device)
        };
        self.api.check("cuDeviceGetName", code)?;
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        Ok(String::from_utf8_lossy(&name[..length]).into_owned())
    }

    pub fn uuid(&self) -> Result<GpuUuid, CudaError> {
        let mut bytes = [0; 16];
        // SAFETY: a place for the 16 bytes that are written.
        let code = unsafe { (self.api.device_uuid)(&mut bytes, self.device) };
        self.api.check("cuDeviceGetUuid", code)?;
        Ok(GpuUuid(bytes))
    }

    pub fn attribute(&self, which: Attribute) -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: a valid place to write to.
        let code = unsafe { (self.api.device_attribute)(&mut value, which as c_int, self.device) };
        self.api.check("cuDeviceGetAttribute", code)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    pub fn free_memory(&self) -> Result<u64, CudaError> {
        self.current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: valid places to write to.
        let code = unsafe { (self.api.memory_info)(&mut free, &mut total) };
        self.api.check("cuMemGetInfo", code)?;
        Ok(free as u64)
    }

    /// Goes with the process. A GPU that has failed may hang when it is asked to free memory.
    pub fn allocate(&self, bytes: u64) -> Result<Address, CudaError> {
        self.current()?;
        let mut address = 0;
        // SAFETY: a valid place to write to.
        let code = unsafe { (self.api.allocate)(&mut address, bytes as usize) };
        self.api.check("cuMemAlloc", code)?;
        Ok(address)
    }

    /// The same, given back when it is dropped, for whoever goes on after an error.
    pub fn buffer(&self, bytes: u64) -> Result<Buffer<'_>, CudaError> {
        Ok(Buffer { context: self, address: self.allocate(bytes)? })
    }

    pub fn free(&self, address: Address) -> Result<(), CudaError> {
        self.current()?;
        // SAFETY: an address that `allocate` gave; whoever frees it does not use it again.
        self.api.check("cuMemFree", unsafe { (self.api.free)(address) })
    }

    pub fn upload<T: Copy>(&self, to: Address, from: &[T]) -> Result<(), CudaError> {
        self.current()?;
        // SAFETY: the bytes of a slice of plain values; the driver checks the address.
        let code =
            unsafe { (self.api.to_device)(to, from.as_ptr().cast(), std::mem::size_of_val(from)) };
        self.api.check("cuMemcpyHtoD", code)
    }

    pub fn download<T: Copy>(&self, to: &mut [T], from: Address) -> Result<(), CudaError> {
        self.current()?;
        let bytes = std::mem::size_of_val(to);
        // SAFETY: all bits are valid in what is read here: floats and whole numbers.
        let code = unsafe { (self.api.to_host)(to.as_mut_ptr().cast(), from, bytes) };
        self.api.check("cuMemcpyDtoH", code)
    }

    pub fn copy(&self, to: Address, from: Address, bytes: u64) -> Result<(), CudaError> {
        self.current()?;
        let stream = std::ptr::null_mut();
        // SAFETY: the driver checks the addresses.
        let code = unsafe { (self.api.on_device)(to, from, bytes as usize, stream) };
        self.api.check("cuMemcpyDtoDAsync", code)
    }

    /// To another GPU, over whatever joins them; done when this context has been waited for.
    pub fn copy_to(
        &self,
        peer: &Context<'_>,
        to: Address,
        from: Address,
        bytes: u64,
    ) -> Result<(), CudaError> {
        self.current()?;
        let (bytes, stream) = (bytes as usize, std::ptr::null_mut());
        // SAFETY: both contexts live; the driver checks the addresses.
        let code = unsafe { (self.api.to_peer)(to, peer.handle, from, self.handle, bytes, stream) };
        self.api.check("cuMemcpyPeerAsync", code)
    }

    /// Lets this GPU reach another one directly. False if they can't.
    pub fn reach(&self, peer: &Context<'_>) -> Result<bool, CudaError> {
        self.current()?;
        let mut can = 0;
        // SAFETY: a valid place to write to.
        let code = unsafe { (self.api.can_access_peer)(&mut can, self.device, peer.device) };
        self.api.check("cuDeviceCanAccessPeer", code)?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: both contexts live.
        match unsafe { (self.api.enable_peer)(peer.handle, 0) } {
            PEER_ACCESS_ALREADY => Ok(true),
            code => self.api.check("cuCtxEnablePeerAccess", code).map(|()| true),
        }
    }

    /// Until everything that was asked for is done.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.current()?;
        // SAFETY: no conditions.
        self.api.check("cuCtxSynchronize", unsafe { (self.api.context_sync)() })
    }

    /// Translates a program for this GPU. It goes with the process.
    pub fn load(&self, text: &str) -> Result<Module<'a>, CudaError> {
        self.current()?;
        let text = CString::new(text).expect("a program has no zero byte");
        let (mut handle, mut log) = (std::ptr::null_mut(), vec![0u8; LOG_BYTES]);
        let mut options = [JIT_LOG, JIT_LOG_SIZE];
        // The driver takes the size itself in place of a pointer.
        let mut values = [log.as_mut_ptr().cast(), LOG_BYTES as *mut c_void];
        // SAFETY: the text ends with a zero, the log is as long as is said, and all outlive the call.
        let code = unsafe {
            let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
            (self.api.module_load)(&mut handle, text.as_ptr().cast(), 2, options, values)
        };
        let loaded = self.api.check("cuModuleLoadDataEx", code);
        loaded.map_err(|error| {
            let said: Vec<u8> = log.into_iter().take_while(|byte| *byte != 0).collect();
            let said = String::from_utf8_lossy(&said).trim().replace('\n', "; ");
            error.with(&said)
        })?;
        Ok(Module { api: self.api, handle })
    }

    pub fn launch(&self, kernel: Kernel, grid: (u32, u32), args: &[Arg]) -> Result<(), CudaError> {
        self.current()?;
        let mut values: Vec<u64> = args
            .iter()
            .map(|arg| match arg {
                Arg::Address(at) => *at,
                // The driver reads as many bytes as the parameter has; the low ones come first.
                Arg::Number(n) => u64::from(*n).to_le(),
            })
            .collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let (none, threads) = (std::ptr::null_mut(), super::ptx::THREADS);
        // SAFETY: one pointer for each parameter, to at least as many bytes as it has.
        let code = unsafe {
            let params = pointers.as_mut_ptr();
            let extra = std::ptr::null_mut();
            (self.api.launch)(kernel.0, grid.0, grid.1, 1, threads, 1, 1, 0, none, params, extra)
        };
        self.api.check("cuLaunchKernel", code)
    }

    /// Runs something and says how long the GPU took for it, in seconds.
    pub fn timed(&self, run: impl FnOnce() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let (start, end) = (self.event()?, self.event()?);
        start.record()?;
        run()?;
        end.record()?;
        // SAFETY: both events live.
        let code = unsafe { (self.api.event_sync)(end.handle) };
        self.api.check("cuEventSynchronize", code)?;
        let mut ms = 0.0;
        // SAFETY: a valid place to write to, and events that live.
        let code = unsafe { (self.api.event_elapsed)(&mut ms, start.handle, end.handle) };
        self.api.check("cuEventElapsedTime", code)?;
        Ok(f64::from(ms) / 1e3)
    }

    fn event(&self) -> Result<Event<'a>, CudaError> {
        self.current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a valid place to write to.
        self.api.check("cuEventCreate", unsafe { (self.api.event_create)(&mut handle, 0) })?;
        Ok(Event { api: self.api, handle })
    }
}

/// Memory of a GPU.
pub struct Buffer<'c> {
    context: &'c Context<'c>,
    address: Address,
}

impl Buffer<'_> {
    pub fn address(&self) -> Address {
        self.address
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // The driver waits for what still uses it. What goes wrong here goes away with the process.
        let _ = self.context.free(self.address);
    }
}

pub struct Module<'a> {
    api: &'a Api,
    handle: Handle,
}

/// A function of a module; it lives as long as the process.
#[derive(Clone, Copy)]
pub struct Kernel(Handle);

// SAFETY: a kernel is a name; whoever launches it needs its context.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Module<'_> {
    pub fn kernel(&self, name: &str) -> Result<Kernel, CudaError> {
        let name =
            CString::new(format!("{}{name}", super::ptx::PREFIX)).expect("a name has no zero byte");
        let mut handle = std::ptr::null_mut();
        // SAFETY: a valid place to write to, and a name that ends with a zero.
        let code = unsafe { (self.api.module_function)(&mut handle, self.handle, name.as_ptr()) };
        self.api.check("cuModuleGetFunction", code)?;
        Ok(Kernel(handle))
    }
}

struct Event<'a> {
    api: &'a Api,
    handle: Handle,
}

impl Event<'_> {
    fn record(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives; the stream is the usual one of the current context.
        let code = unsafe { (self.api.event_record)(self.handle, std::ptr::null_mut()) };
        self.api.check("cuEventRecord", code)
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle. What goes wrong here goes away with the process.
        unsafe { (self.api.event_destroy)(self.handle) };
    }
}
