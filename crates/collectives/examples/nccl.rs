//! Tries every NCCL operation on this rank's GPU, and checks the results.
//!
//! Start it alone, or as the ranks of a gang with one GPU each. Exits with 77 where there is no
//! NCCL or no driver.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use tutti_collectives::nccl::{Comm, Cuda, DevicePtr, Nccl, Stream};
use tutti_collectives::{Config, DType, Element, Error, Op, Result, World, bf16};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e @ Error::NoLibrary { .. }) => {
            eprintln!("nothing to try here: {e}");
            ExitCode::from(77)
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let config = Config::from_env()?;
    let device = config.local_rank;
    let nccl = Nccl::load()?;
    let cuda = Cuda::load(device)?;
    let world = World::connect(config)?;
    let g = world.group();
    println!("rank {} of {}: NCCL {}", g.rank(), g.size(), nccl.version());
    let mut comm = Comm::new(nccl, &g)?;
    let stream = cuda.stream()?;
    for dtype_op in [(DType::F32, Op::Sum), (DType::F32, Op::Mean), (DType::F32, Op::Max)] {
        comm = all_reduce(&cuda, comm, &stream, dtype_op, (g.rank(), g.size()))?;
    }
    comm = halves(&cuda, comm, &stream, (g.rank(), g.size()))?;
    comm = scatter_and_gather(&cuda, comm, &stream, (g.rank(), g.size()))?;
    comm = around(&cuda, comm, &stream, (g.rank(), g.size()))?;
    speed(&cuda, comm, &stream, g.size())?;
    g.barrier()
}

const LEN: usize = 10_007;

fn expect<T: Element + PartialEq + std::fmt::Debug>(what: &str, got: &[T], want: T) {
    assert!(got.iter().all(|v| *v == want), "{what}: {:?} instead of {want:?}", got.first());
    println!("{what}: {} elements are right", got.len());
}

fn all_reduce(
    cuda: &Arc<Cuda>,
    comm: Comm,
    stream: &Stream,
    (dtype, op): (DType, Op),
    (me, n): (usize, usize),
) -> Result<Comm> {
    let x = cuda.upload(&vec![me as f32 + 1.0; LEN])?;
    // SAFETY: the buffer has as many elements, and is read after the wait.
    unsafe { comm.all_reduce((x.ptr(), x.ptr()), LEN, (dtype, op), stream)? };
    let comm = comm.wait(stream)?;
    let sum = (n * (n + 1) / 2) as f32;
    let want = match op {
        Op::Sum => sum,
        Op::Mean => sum / n as f32,
        Op::Max => n as f32,
        Op::Min => 1.0,
    };
    expect(&format!("all_reduce {op:?}"), &x.download()?, want);
    Ok(comm)
}

fn halves(cuda: &Arc<Cuda>, comm: Comm, stream: &Stream, (_, n): (usize, usize)) -> Result<Comm> {
    let x = cuda.upload(&vec![bf16::from_f32(2.0); LEN])?;
    // SAFETY: as above.
    unsafe { comm.all_reduce((x.ptr(), x.ptr()), LEN, (DType::Bf16, Op::Sum), stream)? };
    let comm = comm.wait(stream)?;
    expect("all_reduce of bf16", &x.download()?, bf16::from_f32(2.0 * n as f32));
    Ok(comm)
}

fn scatter_and_gather(
    cuda: &Arc<Cuda>,
    comm: Comm,
    stream: &Stream,
    (me, n): (usize, usize),
) -> Result<Comm> {
    let input = cuda.upload(&vec![3i32; LEN * n])?;
    let part = cuda.upload(&vec![0i32; LEN])?;
    let sum = (DType::I32, Op::Sum);
    // SAFETY: as above; the input has a part for every member.
    unsafe { comm.reduce_scatter((input.ptr(), part.ptr()), LEN, sum, stream)? };
    // SAFETY: as above.
    unsafe { comm.all_gather((part.ptr(), input.ptr()), LEN, DType::I32, stream)? };
    let value = cuda.upload(&vec![me as u64; LEN])?;
    // SAFETY: as above.
    unsafe { comm.broadcast(value.ptr(), LEN, DType::U64, n - 1, stream)? };
    let comm = comm.wait(stream)?;
    expect("reduce_scatter", &part.download()?, 3 * n as i32);
    expect("all_gather", &input.download()?, 3 * n as i32);
    expect("broadcast", &value.download()?, n as u64 - 1);
    Ok(comm)
}

fn around(cuda: &Arc<Cuda>, comm: Comm, stream: &Stream, (me, n): (usize, usize)) -> Result<Comm> {
    let (out, into) = (cuda.upload(&vec![me as f64; LEN])?, cuda.upload(&vec![-1.0f64; LEN])?);
    let (right, left) = ((me + 1) % n, (me + n - 1) % n);
    // SAFETY: as above.
    comm.together(|| unsafe {
        comm.send(out.ptr(), LEN, DType::F64, right, stream)?;
        comm.recv(into.ptr(), LEN, DType::F64, left, stream)
    })?;
    let comm = comm.wait(stream)?;
    expect("send and recv", &into.download()?, left as f64);
    Ok(comm)
}

fn speed(cuda: &Arc<Cuda>, mut comm: Comm, stream: &Stream, n: usize) -> Result<()> {
    let len = 64 << 20;
    let x = cuda.upload(&vec![0f32; len])?;
    let pair: (DevicePtr, DevicePtr) = (x.ptr(), x.ptr());
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        // SAFETY: as above.
        unsafe { comm.all_reduce(pair, len, (DType::F32, Op::Sum), stream)? };
        comm = comm.wait(stream)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("all_reduce of 256 MiB over {n}: {:.1} GB/s", len as f64 * 4.0 / best / 1e9);
    Ok(())
}
