//! Burn's tensors on whichever backend a device belongs to, of those that are built in.

use burn_dispatch::{Dispatch, DispatchDevice};
use burn_tensor::backend::Backend;

pub use burn_tensor::{FloatDType, IndexingUpdateOp, Int, TensorData, activation};

pub type Tensor<const D: usize, K = burn_tensor::Float> = burn_tensor::Tensor<Dispatch, D, K>;
pub type Device = DispatchDevice;

pub fn cpu() -> Device {
    Device::Flex(Default::default())
}

/// The first use of a kind of kernel compiles and tries it, which takes seconds each and minutes for a
/// model. So it tries few, and keeps what it found for the next run of this user.
#[cfg(feature = "cuda")]
pub fn cuda(index: usize) -> Device {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        use cubecl_runtime::config::autotune::AutotuneLevel;
        use cubecl_runtime::config::cache::CacheConfig;
        use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
        let mut config = CubeClRuntimeConfig::from_current_dir();
        config.autotune.level = AutotuneLevel::Minimal;
        config.compilation.cache.get_or_insert(CacheConfig::default());
        CubeClRuntimeConfig::set(config.override_from_env());
    });
    Device::Cuda(burn_cuda::CudaDevice::new(index))
}

pub fn supports(device: &Device, dtype: FloatDType) -> bool {
    Dispatch::supports_dtype(device, dtype.into())
}

/// Waits until the device has done all that it was given.
pub fn sync(device: &Device) {
    Dispatch::sync(device).expect("the device does what it was given");
}

/// Takes a tensor out, so that its memory may be used again, and leaves an empty one.
pub fn take<const D: usize>(tensor: &mut Tensor<D>) -> Tensor<D> {
    let empty = Tensor::empty([0; D], &tensor.device());
    std::mem::replace(tensor, empty)
}
