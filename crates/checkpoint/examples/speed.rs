//! How fast a rank saves and loads here: `cargo run --release -p tutti-checkpoint --example speed
//! DIR [GIB]`. Beside it, what the machine does with the same bytes and none of our code.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use tutti_checkpoint::{Attempt, Dtype, Options, Selector, Store, Tensor, Writer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("which directory?")?;
    let gib: f64 = args.next().map_or(Ok(1.0), |g| g.parse())?;
    let tensors = 16;
    let len = (gib * (1u64 << 30) as f64) as usize / tensors;
    let data: Vec<Vec<u8>> =
        (0..tensors).map(|t| (0..len).map(|i| (i * 31 + t) as u8).collect()).collect();
    let bytes = (len * tensors) as f64;
    let rate = |since: Instant| bytes / since.elapsed().as_secs_f64() / 1e9;

    let begin = Instant::now();
    let plain = std::path::Path::new(&dir).join("plain");
    let mut file = std::fs::File::create(&plain)?;
    for part in &data {
        file.write_all(part)?;
    }
    file.sync_all()?;
    println!("plain write and fsync  {:6.2} GB/s", rate(begin));
    let begin = Instant::now();
    for part in &data {
        std::hint::black_box(blake3::hash(part));
    }
    println!("blake3, one thread     {:6.2} GB/s", rate(begin));
    std::fs::remove_file(plain)?;

    let attempt = Attempt { owner: "speed".into(), generation: 0 };
    let writer = Some(Writer { rank: 0, world: 1, attempt });
    let store = Store::open(&dir, Options { writer, takeover: true, ..Options::default() })?;
    let mut save = store.save(1)?;
    for (t, part) in data.into_iter().enumerate() {
        save.add(Tensor::whole(format!("t{t}"), Dtype::U8, &[len as u64], part))?;
    }
    let begin = Instant::now();
    let saving = save.finish();
    println!("training was held up   {:6.2} ms", begin.elapsed().as_secs_f64() * 1e3);
    let report = saving.wait()?;
    println!("save: hash, write, fsync {:4.2} GB/s", rate(begin));
    let begin = Instant::now();
    store.publish(1, vec![report], serde_json::Value::Null)?;
    println!("publish                {:6.2} ms", begin.elapsed().as_secs_f64() * 1e3);
    let begin = Instant::now();
    let loaded = store.load(Selector::Latest)?;
    for t in 0..tensors {
        std::hint::black_box(loaded.tensor(&format!("t{t}"))?);
    }
    println!("load: read and check   {:6.2} GB/s", rate(begin));
    store.remove(1, true)?;
    Ok(())
}
