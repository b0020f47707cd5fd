//! `libcublas.so`, and the few functions of it that are needed.

use std::ffi::{c_float, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;

use libloading::Library;

use super::look::{Candidate, Look, VARIABLE, name};
use super::lt::Lt;
use super::product::Shape;
use crate::active::api::{Address, Context};
use crate::cuda::CudaError;

pub(super) type Status = c_int;
pub(super) type Handle = *mut c_void;
pub(super) type Destroy = unsafe extern "C" fn(Handle) -> Status;

/// `CUDA_R_*`, `CUBLAS_COMPUTE_*` and `CUBLAS_OP_*`.
pub(super) const R_32F: c_int = 0;
pub(super) const R_16BF: c_int = 14;
pub(super) const R_8F_E4M3: c_int = 28;
pub(super) const COMPUTE_32F: c_int = 68;
pub(super) const AS_IS: c_int = 0;
pub(super) const TURNED: c_int = 1;
const ALGORITHM_OF_ITS_CHOICE: c_int = -1;
pub(super) const NOT_SUPPORTED: Status = 15;

type GemmEx = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_float,
    Address,
    c_int,
    c_int,
    Address,
    c_int,
    c_int,
    *const c_float,
    Address,
    c_int,
    c_int,
    c_int,
    c_int,
) -> Status;

#[derive(Debug, thiserror::Error)]
pub enum NoCublas {
    #[error(
        "no {} is found, neither by the loader nor in a CUDA toolkit or a Python's packages: \
         install PyTorch, or say where it is by {VARIABLE}", name(*.0)
    )]
    Nowhere(i32),
    #[error("{VARIABLE}={}: no libcublas.so is there that this driver can run", .0.display())]
    NotThere(PathBuf),
    #[error("{}: {why}: {VARIABLE} may name another one", file.display())]
    Broken { file: PathBuf, why: String },
}

/// The library, ready to be asked.
pub struct Cublas {
    create: unsafe extern "C" fn(*mut Handle) -> Status,
    destroy: Destroy,
    gemm: GemmEx,
    /// None: this one has nothing for fp8.
    pub(super) lt: Option<Lt>,
    /// Never unloaded: what it started may outlive whoever asked for it.
    _library: ManuallyDrop<Library>,
}

impl Cublas {
    /// `version`: the newest CUDA that the driver can do.
    pub fn load(version: i32) -> Result<Cublas, NoCublas> {
        Cublas::load_by(&Look::here(), version)
    }

    fn load_by(look: &Look, version: i32) -> Result<Cublas, NoCublas> {
        let mut broken = None;
        for candidate in look.candidates(version) {
            // The loader's own word on a name that it does not know tells nobody anything.
            let known = candidate.file.is_absolute();
            match Cublas::open(&candidate) {
                Ok(cublas) => return Ok(cublas),
                Err(error) if known && broken.is_none() => broken = Some(error),
                Err(_) => {}
            }
        }
        let nowhere = || match &look.named {
            Some(named) => NoCublas::NotThere(named.clone()),
            None => NoCublas::Nowhere((version / 1000).min(13)),
        };
        Err(broken.unwrap_or_else(nowhere))
    }

    fn open(candidate: &Candidate) -> Result<Cublas, NoCublas> {
        let Candidate { file, lt } = candidate;
        let broken =
            |why: libloading::Error| NoCublas::Broken { file: file.clone(), why: why.to_string() };
        // It needs its companion, which the loader may not find in a Python's packages by itself.
        let lt = Lt::load(lt).ok();
        // SAFETY: the library has no conditions on being loaded, and the types are those of
        // `cublas_api.h`, with addresses on a GPU as numbers.
        unsafe {
            let library = Library::new(file).map_err(broken)?;
            Ok(Cublas {
                create: *library.get(b"cublasCreate_v2\0").map_err(broken)?,
                destroy: *library.get(b"cublasDestroy_v2\0").map_err(broken)?,
                gemm: *library.get(b"cublasGemmEx\0").map_err(broken)?,
                lt,
                _library: ManuallyDrop::new(library),
            })
        }
    }

    /// On the GPU of this context; to be used by this thread.
    pub fn start(&self, context: &Context<'_>) -> Result<Started<'_>, CudaError> {
        context.current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a valid place to write to.
        check("cublasCreate", unsafe { (self.create)(&mut handle) })?;
        Ok(Started { cublas: self, handle: Made { raw: handle, destroy: self.destroy } })
    }
}

/// Something that the library made and takes back.
pub(super) struct Made {
    pub raw: Handle,
    pub destroy: Destroy,
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: nobody else has it. What goes wrong here goes away with the process.
        unsafe { (self.destroy)(self.raw) };
    }
}

pub struct Started<'a> {
    cublas: &'a Cublas,
    handle: Made,
}

impl Started<'_> {
    /// `c = aᵀ·b` of bf16, as the forward pass of a layer: both have their rows of `k` one after the
    /// other.
    pub fn bf16(&self, shape: Shape, [a, b, c]: [Address; 3]) -> Result<(), CudaError> {
        let (m, n, k) = (shape.m as c_int, shape.n as c_int, shape.k as c_int);
        let (one, zero): (c_float, c_float) = (1.0, 0.0);
        // SAFETY: the memory at the addresses is as large as the shape says.
        let code = unsafe {
            (self.cublas.gemm)(
                self.handle.raw,
                TURNED,
                AS_IS,
                m,
                n,
                k,
                &one,
                a,
                R_16BF,
                k,
                b,
                R_16BF,
                k,
                &zero,
                c,
                R_16BF,
                m,
                COMPUTE_32F,
                ALGORITHM_OF_ITS_CHOICE,
            )
        };
        check("cublasGemmEx", code)
    }
}

pub(super) fn check(call: &'static str, code: Status) -> Result<(), CudaError> {
    let (name, words) = match code {
        0 => return Ok(()),
        1 => ("not initialized", "is the driver too old for this cuBLAS?"),
        3 => ("allocation failed", "is somebody using the GPU's memory?"),
        7 => ("invalid value", "this cuBLAS takes other arguments"),
        8 => ("architecture mismatch", "this cuBLAS does not know the GPU"),
        13 => ("execution failed", "the GPU did not do it"),
        14 => ("internal error", "cuBLAS says no more"),
        NOT_SUPPORTED => ("not supported", "this cuBLAS does not do it on this GPU"),
        _ => ("unknown error", "cuBLAS says no more"),
    };
    Err(CudaError::Driver { call, code, name: name.to_owned(), words: words.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_cublas_is_told_the_way_out() {
        let look = Look { named: Some("/nonexistent/cublas".into()), ..Look::default() };
        let Err(error) = Cublas::load_by(&look, 13000) else { panic!("loaded from nowhere") };
        assert!(error.to_string().starts_with("TUTTI_CUBLAS=/nonexistent/cublas: no"), "{error}");
        let words = NoCublas::Nowhere(12).to_string();
        assert!(words.contains("libcublas.so.12") && words.contains("TUTTI_CUBLAS"), "{words}");
    }

    #[test]
    fn what_is_no_library_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("libcublas.so.12");
        std::fs::write(&file, "not a library").unwrap();
        let look = Look { named: Some(file.clone()), ..Look::default() };
        let Err(error) = Cublas::load_by(&look, 13000) else { panic!("loaded a text") };
        assert!(matches!(&error, NoCublas::Broken { file: f, .. } if *f == file), "{error}");
    }

    #[test]
    fn codes_have_words() {
        assert!(check("cublasCreate", 0).is_ok());
        let error = check("cublasGemmEx", NOT_SUPPORTED).unwrap_err();
        assert_eq!(error.code(), Some(15));
        assert!(error.to_string().starts_with("cublasGemmEx: not supported (15): "), "{error}");
    }
}
