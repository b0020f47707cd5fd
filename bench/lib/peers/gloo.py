"""Gloo's all_reduce of float32 through torch, over loopback: gloo.py RANKS BYTES..."""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank(me, ranks, sizes, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=me, world_size=ranks)
    for size in sizes:
        x = torch.ones(size // 4)
        rounds = 500 if size <= 65536 else 100 if size <= 1 << 20 else 20
        times = []
        for i in range(-3, rounds):
            x.fill_(1.0)
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(x)
            slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if i >= 0:
                times.append(slowest.item())
        assert x[-1].item() == ranks
        if me == 0:
            p50, least = statistics.median(times), min(times)
            print(f"bytes={size} p50_us={p50 * 1e6:.2f} min_us={least * 1e6:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, sizes = int(sys.argv[1]), [int(s) for s in sys.argv[2:]]
    mp.spawn(rank, args=(ranks, sizes, 29500 + os.getpid() % 1000), nprocs=ranks)
