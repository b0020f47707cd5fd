use super::*;
use crate::testing::{ask, work};
use crate::{catalogue, names};

fn show(a: &Answer) {
    eprintln!(
        "{:?} {:.3}s mfu {:.3} mem {:.1} of {} / {}",
        a.best.layout,
        a.best.estimate.time.total(),
        a.best.mfu,
        a.best.estimate.memory.total(),
        a.fitting,
        a.considered
    );
    for r in &a.runners_up {
        eprintln!("   {}", r.loses);
    }
}

#[test]
fn look() {
    let t = std::time::Instant::now();
    for (m, c, w) in [
        ("llama-3.1-70b", "8xa100", work(Task::Lora { rank: 16 }, 4096, 32)),
        ("llama-3.1-70b", "8xa100", work(Task::Finetune, 4096, 32)),
        ("llama-3.1-70b", "128xh100", work(Task::Pretrain, 8192, 512)),
        ("llama-3.1-8b", "128xh100", work(Task::Pretrain, 8192, 512)),
        ("llama-3.1-405b", "16384xh100", work(Task::Pretrain, 8192, 2048)),
        ("deepseek-v3", "16384xh100", work(Task::Pretrain, 4096, 16384)),
        ("llama-3.1-405b", "100000xh100", work(Task::Pretrain, 8192, 10000)),
        ("llama-3.1-405b", "16384xh100", work(Task::Pretrain, 131072, 128)),
        ("llama-3.1-405b", "14400xgb200", work(Task::Pretrain, 8192, 14400)),
    ] {
        let arch = names::find(m).unwrap();
        let cluster = catalogue::find(c).unwrap();
        let q = ask(&arch, &w, &cluster);
        match search(&q) {
            Ok(a) => show(&a),
            Err(e) => eprintln!("{e}"),
        }
        eprintln!("== {m} {c} {:?}", t.elapsed());
    }
}
