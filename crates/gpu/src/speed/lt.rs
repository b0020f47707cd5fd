//! `libcublasLt.so`: products of fp8, which cuBLAS itself does not do.

use std::ffi::{c_float, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::Library;

use super::cublas::{
    AS_IS, COMPUTE_32F, Destroy, Handle, Made, NOT_SUPPORTED, R_8F_E4M3, R_16BF, R_32F, Status,
    TURNED, check,
};
use super::product::Shape;
use crate::active::api::{Address, Buffer, Context};
use crate::cuda::CudaError;

/// `CUBLASLT_MATMUL_DESC_*` and `CUBLASLT_MATMUL_PREF_*`.
const TURN_A: c_int = 3;
const TURN_B: c_int = 4;
/// Sums of fp8 are not carried on in higher precision between steps: as trainers do it forwards.
const FAST_SUMS: c_int = 25;
const MOST_WORKSPACE: c_int = 1;
/// What the library recommends for its largest GPUs.
const WORKSPACE: u64 = 32 << 20;

/// `cublasLtMatmulHeuristicResult_t`; its algorithm is the first 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Chosen {
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: c_float,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Chosen>() == 96);

type SetAttribute = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> Status;
type Choose = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    c_int,
    *mut Chosen,
    *mut c_int,
) -> Status;
type Matmul = unsafe extern "C" fn(
    Handle,
    Handle,
    *const c_float,
    Address,
    Handle,
    Address,
    Handle,
    *const c_float,
    Address,
    Handle,
    Address,
    Handle,
    *const [u64; 8],
    Address,
    usize,
    Handle,
) -> Status;

pub struct Lt {
    create: unsafe extern "C" fn(*mut Handle) -> Status,
    destroy: Destroy,
    operation_create: unsafe extern "C" fn(*mut Handle, c_int, c_int) -> Status,
    operation_destroy: Destroy,
    operation_set: SetAttribute,
    layout_create: unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> Status,
    layout_destroy: Destroy,
    wish_create: unsafe extern "C" fn(*mut Handle) -> Status,
    wish_destroy: Destroy,
    wish_set: SetAttribute,
    choose: Choose,
    matmul: Matmul,
    /// Never unloaded: what it started may outlive whoever asked for it.
    _library: ManuallyDrop<Library>,
}

impl Lt {
    pub fn load(file: &Path) -> Result<Lt, libloading::Error> {
        // SAFETY: the library has no conditions on being loaded, and the types are those of
        // `cublasLt.h`, with addresses on a GPU as numbers.
        unsafe {
            let library = Library::new(file)?;
            Ok(Lt {
                create: *library.get(b"cublasLtCreate\0")?,
                destroy: *library.get(b"cublasLtDestroy\0")?,
                operation_create: *library.get(b"cublasLtMatmulDescCreate\0")?,
                operation_destroy: *library.get(b"cublasLtMatmulDescDestroy\0")?,
                operation_set: *library.get(b"cublasLtMatmulDescSetAttribute\0")?,
                layout_create: *library.get(b"cublasLtMatrixLayoutCreate\0")?,
                layout_destroy: *library.get(b"cublasLtMatrixLayoutDestroy\0")?,
                wish_create: *library.get(b"cublasLtMatmulPreferenceCreate\0")?,
                wish_destroy: *library.get(b"cublasLtMatmulPreferenceDestroy\0")?,
                wish_set: *library.get(b"cublasLtMatmulPreferenceSetAttribute\0")?,
                choose: *library.get(b"cublasLtMatmulAlgoGetHeuristic\0")?,
                matmul: *library.get(b"cublasLtMatmul\0")?,
                _library: ManuallyDrop::new(library),
            })
        }
    }

    /// Prepares `c = aᵀ·b` of fp8, the answer in bf16. The GPU of this context does it.
    pub fn prepare<'a>(
        &'a self,
        context: &'a Context<'_>,
        shape: Shape,
    ) -> Result<Prepared<'a>, CudaError> {
        context.current()?;
        let (m, n, k) = (u64::from(shape.m), u64::from(shape.n), u64::from(shape.k));
        let handle = made("cublasLtCreate", self.destroy, |to| {
            // SAFETY: a valid place to write to.
            unsafe { (self.create)(to) }
        })?;
        let operation = self.operation()?;
        let a = self.layout(R_8F_E4M3, k, m)?;
        let b = self.layout(R_8F_E4M3, k, n)?;
        let c = self.layout(R_16BF, m, n)?;
        let algorithm = self.algorithm(&handle, &operation, [&a, &b, &c])?;
        let workspace = context.buffer(WORKSPACE)?;
        Ok(Prepared { lt: self, handle, operation, a, b, c, algorithm, workspace })
    }

    fn operation(&self) -> Result<Made, CudaError> {
        let operation = made("cublasLtMatmulDescCreate", self.operation_destroy, |to| {
            // SAFETY: a valid place to write to.
            unsafe { (self.operation_create)(to, COMPUTE_32F, R_32F) }
        })?;
        let set = |which, value: *const c_void, bytes| {
            // SAFETY: a value of as many bytes as the attribute has.
            let code = unsafe { (self.operation_set)(operation.raw, which, value, bytes) };
            check("cublasLtMatmulDescSetAttribute", code)
        };
        for (which, turn) in [(TURN_A, TURNED), (TURN_B, AS_IS)] {
            set(which, std::ptr::from_ref(&turn).cast(), size_of::<c_int>())?;
        }
        let fast = 1i8;
        set(FAST_SUMS, std::ptr::from_ref(&fast).cast(), size_of::<i8>())?;
        Ok(operation)
    }

    fn layout(&self, of: c_int, rows: u64, columns: u64) -> Result<Made, CudaError> {
        made("cublasLtMatrixLayoutCreate", self.layout_destroy, |to| {
            // SAFETY: a valid place to write to.
            unsafe { (self.layout_create)(to, of, rows, columns, rows as i64) }
        })
    }

    fn algorithm(
        &self,
        handle: &Made,
        operation: &Made,
        [a, b, c]: [&Made; 3],
    ) -> Result<[u64; 8], CudaError> {
        let wish = made("cublasLtMatmulPreferenceCreate", self.wish_destroy, |to| {
            // SAFETY: a valid place to write to.
            unsafe { (self.wish_create)(to) }
        })?;
        let most = std::ptr::from_ref(&WORKSPACE).cast();
        // SAFETY: a value of as many bytes as the attribute has.
        let code = unsafe { (self.wish_set)(wish.raw, MOST_WORKSPACE, most, size_of::<u64>()) };
        check("cublasLtMatmulPreferenceSetAttribute", code)?;
        let nothing =
            Chosen { algorithm: [0; 8], workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };
        let (mut chosen, mut found) = (nothing, 0);
        // SAFETY: everything lives, and there is room for the one answer that is asked for.
        let code = unsafe {
            let (handle, operation, wish) = (handle.raw, operation.raw, wish.raw);
            let (a, b, c) = (a.raw, b.raw, c.raw);
            (self.choose)(handle, operation, a, b, c, c, wish, 1, &mut chosen, &mut found)
        };
        check("cublasLtMatmulAlgoGetHeuristic", code)?;
        check("cublasLtMatmulAlgoGetHeuristic", if found > 0 { 0 } else { NOT_SUPPORTED })?;
        Ok(chosen.algorithm)
    }
}

fn made(
    call: &'static str,
    destroy: Destroy,
    create: impl FnOnce(*mut Handle) -> Status,
) -> Result<Made, CudaError> {
    let mut raw = std::ptr::null_mut();
    check(call, create(&mut raw))?;
    Ok(Made { raw, destroy })
}

/// A product of one shape, to be computed again and again.
pub struct Prepared<'a> {
    lt: &'a Lt,
    handle: Made,
    operation: Made,
    a: Made,
    b: Made,
    c: Made,
    algorithm: [u64; 8],
    workspace: Buffer<'a>,
}

impl Prepared<'_> {
    pub fn run(&self, [a, b, c]: [Address; 3]) -> Result<(), CudaError> {
        let (one, zero): (c_float, c_float) = (1.0, 0.0);
        // SAFETY: everything lives, and the memory at the addresses is as large as the shape says.
        let code = unsafe {
            (self.lt.matmul)(
                self.handle.raw,
                self.operation.raw,
                &one,
                a,
                self.a.raw,
                b,
                self.b.raw,
                &zero,
                c,
                self.c.raw,
                c,
                self.c.raw,
                &self.algorithm,
                self.workspace.address(),
                WORKSPACE as usize,
                std::ptr::null_mut(),
            )
        };
        check("cublasLtMatmul", code)
    }
}
