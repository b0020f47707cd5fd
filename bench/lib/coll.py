"""All-reduce of ours, Open MPI and Gloo: how each is built, run and judged."""

import os
import re
import shutil
import subprocess

from measure import median

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEERS = os.path.join(ROOT, "bench", "lib", "peers")
OURS = os.path.join(ROOT, "target", "release", "examples", "all_reduce")
PYTHON = "/usr/bin/python3"
PACKAGES = ["gcc", "openmpi-bin", "libopenmpi-dev", "python3-torch", "iproute2"]
KIB, MIB = 1 << 10, 1 << 20


def install():
    """Debian's packages, when something is missing."""
    missing = [p for p in ("gcc", "mpicc", "mpirun", "ip", "unshare") if not shutil.which(p)]
    torch = subprocess.run([PYTHON, "-c", "import torch.distributed"], capture_output=True)
    if torch.returncode != 0:
        missing.append("torch")
    if not missing:
        return
    apt = f"apt-get install {' '.join(PACKAGES)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SystemExit(f"the peers are not complete ({', '.join(missing)} missing). As root: {apt}")
    print(f"installing the peers: {apt}", flush=True)
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    subprocess.run(["apt-get", "update", "-qq"], env=env, check=True)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES],
                   env=env, check=True, stdout=subprocess.DEVNULL)


def build(folder):
    subprocess.run(["cargo", "build", "--release", "-p", "tutti-collectives", "--example",
                    "all_reduce"], cwd=ROOT, check=True)
    flags = ["-O3", "-march=native"]
    subprocess.run(["gcc", *flags, "-o", f"{folder}/memcpy", f"{PEERS}/memcpy.c", "-lpthread"],
                   check=True)
    subprocess.run(["mpicc", *flags, "-o", f"{folder}/mpi", f"{PEERS}/allreduce.c"], check=True)


def alone(argv):
    """In a network namespace with only loopback: torch and MPI listen on all addresses."""
    return ["unshare", "-n", "--", "bash", "-c", 'ip link set lo up && exec "$@"', "lo", *argv]


def command(who, kind, ranks, sizes, folder):
    texts = [str(s) for s in sizes]
    if who == "tutti":
        return [OURS, kind, str(ranks), ",".join(texts)]
    if who == "gloo":
        return [PYTHON, f"{PEERS}/gloo.py", str(ranks), *texts]
    btl = ["--mca", "btl", "vader,self"]
    if kind == "tcp":
        btl = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
    return ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *btl,
            "--mca", "pml", "ob1", f"{folder}/mpi", *texts]


def run(who, kind, ranks, sizes, folder):
    """Microseconds (median) per size of one run."""
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run(alone(command(who, kind, ranks, sizes, folder)), env=env,
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{who} {kind} with {ranks} ranks exited with {done.returncode}: "
                           f"{done.stderr[-500:]}")
    found = {int(b): float(us) for b, us in re.findall(r"bytes=(\d+) .*?p50_us=([\d.]+)", done.stdout)}
    if set(found) != set(sizes):
        raise RuntimeError(f"{who} {kind}: no result for {sorted(set(sizes) - set(found))}")
    return found


def memcpy(folder):
    out = subprocess.run([f"{folder}/memcpy"], check=True, capture_output=True, text=True).stdout
    return {int(n): float(gbs) for n, gbs in re.findall(r"threads=(\d) gbs=([\d.]+)", out)}


def least_ratio(kind, peer, size):
    """How many times as fast as the peer we mean to be; None where nothing is claimed."""
    if peer == "gloo":
        return 1.0 if kind == "shm" and size >= 16 * MIB else None
    if size <= 1 * KIB:
        return 0.5
    if size < 64 * KIB:
        return None
    return 1.5 if kind == "shm" and size >= 64 * MIB else 1.0


def human(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


class Table:
    """Samples of all runs, and the table of their medians."""

    def __init__(self, sizes, ranks, limits):
        self.sizes, self.ranks, self.limits = sizes, ranks, limits
        self.samples = {}

    def add(self, who, kind, ranks, found):
        for size, us in found.items():
            self.samples.setdefault((who, kind, ranks, size), []).append(us)

    def median(self, who, kind, ranks, size):
        kind = "tcp" if who == "gloo" else kind
        values = self.samples.get((who, kind, ranks, size))
        return median(values) if values else None

    def rows(self):
        for kind in ("shm", "tcp"):
            for ranks in self.ranks:
                for size in self.sizes:
                    yield self.row(kind, ranks, size)

    def row(self, kind, ranks, size):
        ours = self.median("tutti", kind, ranks, size)
        row = {"kind": kind, "ranks": ranks, "bytes": size, "tutti_us": ours, "verdict": ""}
        for peer in ("mpi", "gloo"):
            theirs = self.median(peer, kind, ranks, size)
            ratio = theirs / ours if theirs and ours else None
            row[f"{peer}_us"], row[f"{peer}_ratio"] = theirs, ratio
            target = least_ratio(kind, peer, size)
            if target and ratio:
                row["verdict"] = row["verdict"] or "met"
                if ratio < target:
                    row["verdict"] = f"MISSED (≥ {target:g}× {peer})"
        # Every rank's buffer is read once and written once: what as many copies would take.
        limit = self.limits[min(2, ranks)] * 1e9
        row["share"] = ranks * size / limit / (ours * 1e-6) if size >= 64 * MIB and ours else None
        return row

    def text(self):
        lines = ["| link | ranks | size | tutti, µs (GB/s) | Open MPI, µs | ratio | Gloo, µs | ratio "
                 "| of memcpy | verdict |", "|---|---|---|---|---|---|---|---|---|---|"]
        show = lambda v: "–" if v is None else f"{v:,.0f}" if v >= 100 else f"{v:,.1f}"  # noqa: E731
        times = lambda v: "" if v is None else f"{v:.2f}×"  # noqa: E731
        for r in self.rows():
            rate = r["bytes"] / r["tutti_us"] / 1e3 if r["tutti_us"] else 0
            share = "" if r["share"] is None else f"{r['share'] * 100:.0f} %"
            lines.append(f"| {r['kind']} | {r['ranks']} | {human(r['bytes'])} | {show(r['tutti_us'])} "
                         f"({rate:.2f}) | {show(r['mpi_us'])} | {times(r['mpi_ratio'])} | "
                         f"{show(r['gloo_us'])} | {times(r['gloo_ratio'])} | {share} | "
                         f"{r['verdict']} |")
        return "\n".join(lines)

    def missed(self):
        return [f"{r['kind']} {r['ranks']} ranks {human(r['bytes'])}: {r['verdict']}"
                for r in self.rows() if r["verdict"].startswith("MISSED")]
