//! How fast NVIDIA GPUs are at what training is made of: products of matrices by cuBLAS, and copies
//! within their memory. Nothing is judged here, and no answer is checked: [`crate::active`] does that.
//!
//! ```text
//! measure ─┬─ a thread for each GPU ─► copies ─► bf16 ─► fp8 ─► Speed
//!          └─ look ─► cuBLAS, loaded at run time: without it, copies alone
//! ```
//!
//! All GPUs of the process work at once, as they do when they train: they share power and cooling.
//! A GPU may hang, so nobody calls this in a process that has to go on.

mod cublas;
mod look;
mod lt;
mod product;

use serde::{Deserialize, Serialize};
use tutti_model::{MatmulPrecision, MatmulRate};

use crate::active::api::{Api, Attribute, Context};
use crate::active::memory;
use crate::cuda::CudaError;
use cublas::Cublas;
use product::Values;

pub use look::VARIABLE;

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speed {
    /// `GPU-…`; an instance of a GPU has the name of the whole one.
    pub uuid: String,
    /// "NVIDIA H100 80GB HBM3".
    pub name: String,
    /// Bytes a second, read and written, by copies within it.
    pub copy: Option<u64>,
    /// What the memory's clock and width allow. None: the driver does not say.
    pub copy_peak: Option<u64>,
    pub products: Vec<MatmulRate>,
    /// What could not be measured, and why.
    pub problems: Vec<String>,
}

impl Speed {
    /// The fastest of its products.
    pub fn best(&self, precision: MatmulPrecision) -> Option<u64> {
        self.products.iter().filter(|p| p.precision == precision).map(|p| p.rate).max()
    }
}

/// Hears of it as it goes on: the GPU's number in this process, and what it does.
pub type Say<'a> = &'a (dyn Fn(usize, &str) + Sync);

/// Measures all GPUs that this process sees (`CUDA_VISIBLE_DEVICES`), in the driver's order. A driver
/// that does not start is an error; all else is a problem of the GPU.
pub fn measure(say: Say<'_>) -> Result<Vec<Speed>, CudaError> {
    let api = Api::start()?;
    let count = usize::try_from(api.device_count()?).unwrap_or(0);
    let cublas = Cublas::load(api.version()?).map_err(|e| e.to_string());
    let values = Values::new();
    let (api, cublas, values) = (&api, cublas.as_ref(), &values);
    Ok(std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..count).map(|at| scope.spawn(move || one(api, at, cublas, values, say))).collect();
        // A thread that panicked has said why on standard error.
        let broken = || Speed { problems: vec!["it broke off".to_owned()], ..Speed::default() };
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| broken())).collect()
    }))
}

fn one(
    api: &Api,
    at: usize,
    cublas: Result<&Cublas, &String>,
    values: &Values,
    say: Say<'_>,
) -> Speed {
    let mut speed = Speed::default();
    let done = api.open(at as i32).and_then(|context| {
        speed.uuid = context.uuid()?.to_string();
        speed.name = context.name()?;
        say(at, "copying memory");
        let fill = |to, bytes| values.spread(&context, MatmulPrecision::Bf16, to, bytes);
        speed.copy = Some(memory::copy_rate(&context, fill)?);
        speed.copy_peak = memory::peak(&context)?;
        match cublas {
            Ok(cublas) => products(&context, cublas, values, &mut speed, &|what| say(at, what))?,
            Err(why) => speed.problems.push(format!("no matrices are multiplied: {why}")),
        }
        Ok(())
    });
    if let Err(error) = done {
        speed.problems.push(error.to_string());
    }
    speed
}

fn products(
    context: &Context<'_>,
    cublas: &Cublas,
    values: &Values,
    speed: &mut Speed,
    say: &dyn Fn(&str),
) -> Result<(), CudaError> {
    let capability = (
        context.attribute(Attribute::CapabilityMajor)?,
        context.attribute(Attribute::CapabilityMinor)?,
    );
    for precision in MatmulPrecision::ALL {
        if capability < since(precision) {
            continue;
        }
        say(&format!("multiplying matrices of {}", precision.as_str()));
        let done = product::measure(context, cublas, values, precision);
        match done {
            Ok((found, problems)) => {
                speed.products.extend(found);
                speed.problems.extend(problems);
            }
            // What copies and other precisions did still counts.
            Err(error) => speed.problems.push(format!("{}: {error}", precision.as_str())),
        }
    }
    if capability < since(MatmulPrecision::Bf16) {
        let (major, minor) = capability;
        let why = format!("it has no tensor cores for bf16 (compute capability {major}.{minor})");
        speed.problems.push(why);
    }
    Ok(())
}

/// The first compute capability whose tensor cores know it.
fn since(precision: MatmulPrecision) -> (u32, u32) {
    match precision {
        MatmulPrecision::Bf16 => (8, 0),
        MatmulPrecision::Fp8 => (8, 9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_says_so() {
        // SAFETY: the driver's library has no conditions on being loaded.
        if unsafe { libloading::Library::new("libcuda.so.1") }.is_ok() {
            return;
        }
        // Whoever asks tells from this variant that the machine may have GPUs of somebody else.
        let said = measure(&|_, _| {});
        assert!(matches!(said, Err(CudaError::NoLibrary(_))), "{said:?}");
    }

    #[test]
    fn the_best_product_is_one_of_its_precision() {
        use MatmulPrecision::{Bf16, Fp8};
        let product = |(precision, rate)| MatmulRate { precision, m: 16, n: 32, k: 64, rate };
        let products = [(Bf16, 7), (Bf16, 5), (Fp8, 11)].map(product).to_vec();
        let speed = Speed { products, ..Speed::default() };
        assert_eq!(speed.best(Bf16), Some(7));
        assert_eq!(speed.best(Fp8), Some(11));
        assert_eq!(Speed::default().best(Bf16), None);
    }
}
