"""Clocks, counters and statistics. Everything is read from /proc; nothing here knows Slurm or tutti."""

import os
import signal
import statistics
import subprocess
import time

TICK = os.sysconf("SC_CLK_TCK")


def median(values):
    return statistics.median(values)


def percentile(values, p):
    """The nearest-rank percentile, so that it is always a value that was seen."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p * len(ordered)))]


def machine_cpu():
    """Seconds of CPU that the whole machine has used: everything but idle, iowait and steal."""
    with open("/proc/stat") as f:
        user, nice, system, _idle, _iowait, irq, softirq = map(int, f.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / TICK


def stolen():
    """Seconds of CPU that this machine wanted and its host gave to others, and all seconds of CPU."""
    with open("/proc/stat") as f:
        times = list(map(int, f.readline().split()[1:9]))
    return times[7] / TICK, sum(times) / TICK


def process_cpu(pid):
    """Seconds used by a process itself, its waited-for children included. 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / TICK


def rss_mib(pid):
    """Resident memory (VmRSS) of one process in MiB."""
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parents():
    """pid to parent pid, for every process."""
    table = {}
    for pid in all_pids():
        try:
            with open(f"/proc/{pid}/stat") as f:
                table[pid] = int(f.read().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return table


def descendants(*roots):
    table = parents()
    found, border = set(), set(roots)
    while border:
        border = {pid for pid, parent in table.items() if parent in border} - found
        found |= border
    return found


def pids_with(text, where=("environ", "cmdline")):
    """Processes whose environment or command line holds `text`. Never this process or its parents."""
    needle, table = text.encode(), parents()
    mine, pid = set(), os.getpid()
    while pid:
        mine.add(pid)
        pid = table.get(pid, 0)
    found = set()
    for pid in table:
        for name in where:
            try:
                with open(f"/proc/{pid}/{name}", "rb") as f:
                    if needle in f.read():
                        found.add(pid)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found - mine


def alive(pid):
    """A zombie counts as gone, but not while other threads of it still hold its files open."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            if f.read().rsplit(")", 1)[1].split()[0] != "Z":
                return True
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid, sig=signal.SIGKILL):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        return False
    return True


def end(pids, patience=10.0):
    """SIGTERM, then SIGKILL for what is left after `patience` seconds."""
    pids = set(pids)
    for pid in pids:
        kill(pid, signal.SIGTERM)
    wait_until(lambda: not any(map(alive, pids)), patience, fail=False)
    for pid in filter(alive, pids):
        kill(pid)
    wait_until(lambda: not any(map(alive, pids)), 5, fail=False)


def wait_until(condition, seconds, what="the condition", pause=0.02, fail=True):
    """Polls until `condition()` is true; returns the seconds that took."""
    start = time.monotonic()
    while True:
        if condition():
            return time.monotonic() - start
        if time.monotonic() - start > seconds:
            if fail:
                raise TimeoutError(f"waited {seconds} s for {what}")
            return None
        time.sleep(pause)


class Usage:
    """CPU used between two moments, for the machine and for named groups of processes."""

    def __init__(self, groups):
        self.groups = groups
        self.machine = machine_cpu()
        self.before = {name: self._sum(pids) for name, pids in groups.items()}

    @staticmethod
    def _sum(pids):
        return sum(map(process_cpu, pids))

    def per_job_ms(self, jobs):
        result = {"machine": (machine_cpu() - self.machine) * 1e3 / jobs}
        for name, pids in self.groups.items():
            result[name] = (self._sum(pids) - self.before[name]) * 1e3 / jobs
        return result


def _spawn_loop(argv, seconds, cpu):
    os.sched_setaffinity(0, {cpu})
    count, end_at = 0, time.monotonic() + seconds
    while time.monotonic() < end_at:
        os.waitpid(os.posix_spawn(argv[0], argv, os.environ), 0)
        count += 1
    return count


def spawn_rate(cores, seconds=2.0, argv=("/bin/true",)):
    """Bare posix_spawn + waitpid per second, one loop pinned to each of `cores` cores."""
    cpus = sorted(os.sched_getaffinity(0))[:cores]
    pipes = []
    for cpu in cpus:
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                os.write(write, str(_spawn_loop(argv, seconds, cpu)).encode())
            finally:
                os._exit(0)
        os.close(write)
        pipes.append(read)
    counts = []
    for read in pipes:
        with os.fdopen(read) as f:
            counts.append(int(f.read()))
        os.wait()
    return sum(counts) / seconds


def fsync_ms(folder, rounds=50):
    """What one 4 KiB append with fdatasync costs on the disk where the state lies."""
    path = os.path.join(folder, "fsync-probe")
    times = []
    with open(path, "wb", buffering=0) as f:
        for _ in range(rounds):
            start = time.perf_counter()
            f.write(b"x" * 4096)
            os.fdatasync(f.fileno())
            times.append((time.perf_counter() - start) * 1e3)
    os.unlink(path)
    return median(times)


def timed(argv, env, cwd):
    """Wall milliseconds of one command; it must succeed."""
    start = time.perf_counter()
    done = subprocess.run(argv, env=env, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    ms = (time.perf_counter() - start) * 1e3
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace")[-500:]
        raise RuntimeError(f"{' '.join(argv)} exited with {done.returncode}: {said}")
    return ms


def repeat(argv, env, cwd, times, warm_up=2):
    for _ in range(warm_up):
        timed(argv, env, cwd)
    return [timed(argv, env, cwd) for _ in range(times)]


def xargs(count, argv, env, cwd, at_once=8):
    """`count` processes of `argv`, so many at a time, as a shell user would do it."""
    lines = "".join(f"{i}\n" for i in range(count))
    done = subprocess.run(
        ["xargs", f"-P{at_once}", "-I{}", *argv],
        input=lines.encode(), env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace")[-500:]
        raise RuntimeError(f"{' '.join(argv)} failed under xargs ({done.returncode}): {said}")
    return done.stdout.decode()
