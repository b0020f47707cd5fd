"""The five measurements. Each runs one system at a time and leaves rows in the report."""

import time

from measure import Usage, percentile, spawn_rate
from slurm import CounterReset

KINDS = {
    "array": ("one array", 10),
    "api": ("API, 8 clients", 10),
    "processes": ("submit processes, 8 at a time", 5),
}


class Bench:
    def __init__(self, systems, report, options):
        # `systems` are functions that make a fresh one: {"tutti": ..., "slurm": ...}
        self.systems, self.report, self.options = systems, report, options
        self.running = None

    def with_each(self, action):
        """Runs `action(system)` on a fresh cluster of each, one after the other, never both."""
        names = list(self.systems)
        for name in names:
            self.with_one(name, action)

    def with_one(self, name, action):
        system = self.systems[name]()
        self.running = system
        try:
            system.took_to_start = system.start()
            return action(system)
        finally:
            system.stop()
            self.running = None

    def alternate(self, action):
        """`reps` fresh clusters of each; who goes first changes each time."""
        for rep in range(self.options.reps):
            names = list(self.systems) if rep % 2 == 0 else list(self.systems)[::-1]
            for name in names:
                print(f"  [{rep + 1}/{self.options.reps}] {name}", flush=True)
                self.with_one(name, action)


# -- a: jobs run to the end ------------------------------------------------------------------------


def throughput(bench):
    jobs, report = bench.options.jobs, bench.report
    results = {}

    def measure(system):
        system.start_rest()
        results.setdefault(("start", system.name), []).append(system.took_to_start)
        for kind in KINDS:
            rate, cpu, submit = _one_throughput(system, kind, jobs)
            results.setdefault((kind, system.name), []).append(rate)
            results.setdefault((kind, "submit", system.name), []).append(submit)
            for group, ms in cpu.items():
                results.setdefault((kind, group, system.name), []).append(ms)

    bench.alternate(measure)
    get = results.get
    for kind, (words, target) in KINDS.items():
        note = API_NOTE if kind == "api" else JOBS_NOTE
        report.compare(f"{jobs:,} one-GPU jobs, {words}", "jobs/s", get((kind, "tutti")),
                       get((kind, "slurm")), target, note=note)
    for kind, (words, _) in KINDS.items():
        report.compare(f"submission alone, {words}", "jobs/s", get((kind, "submit", "tutti")),
                       get((kind, "submit", "slurm")))
    for group in ("machine", "controller", "agents"):
        for kind, (words, _) in KINDS.items():
            report.compare(f"CPU of {group}, {words}", "ms/job", get((kind, group, "tutti")),
                           get((kind, group, "slurm")), more_is_better=False, note=CPU_NOTE)
    report.compare("start of the cluster", "s", get(("start", "tutti")), get(("start", "slurm")),
                   more_is_better=False)
    _bare(bench, results)


def _one_throughput(system, kind, jobs):
    for _ in range(3):
        try:
            system.wait_idle()
            time.sleep(1)
            before, usage, start = system.counters(), Usage(system.groups()), time.monotonic()
            getattr(system, f"submit_{kind}")(jobs)
            submitted = time.monotonic() - start
            system.wait_done(before, jobs)
            took = time.monotonic() - start
            return jobs / took, usage.per_job_ms(jobs), jobs / submitted
        except CounterReset:
            print("  sdiag's counters were reset (midnight); once more", flush=True)
    raise RuntimeError("sdiag's counters were reset three times")


def _bare(bench, results):
    """What the machine itself allows, in the same run: nothing but starting and reaping."""
    seconds = 1 if bench.options.quick else 3
    for cores in (1, 2):
        rate = spawn_rate(cores, seconds)
        shell = spawn_rate(cores, seconds, ("/bin/sh", "-c", "true"))
        bench.report.fact(
            f"bare posix_spawn on {cores} core{'s' if cores > 1 else ''}, per second",
            f"true {rate:,.0f}; sh -c true {shell:,.0f}")
        if cores == 2:
            for kind, (words, _) in KINDS.items():
                rates = results.get((kind, "tutti"))
                if rates:
                    share = sorted(rates)[len(rates) // 2] / shell
                    bench.report.fact(f"part of bare sh -c true on 2 cores, {words}",
                                      f"{share * 100:.0f} %")


JOBS_NOTE = ("Jobs are `sh -c true` with one GPU each, run to the end. tutti writes each job's log "
             "to disk and every record with fsync; Slurm's output goes to /dev/null and its state "
             "is saved with a delay.")
API_NOTE = ("tutti's API: POST /api/v1/jobs over 8 keep-alive connections. Slurm's: slurmrestd, "
            "POST /slurm/v0.0.38/job/submit over 8 connections to its socket.")
CPU_NOTE = ("CPU of the machine is all of /proc/stat but idle, iowait and steal, the submitting "
            "clients included. CPU of a group counts the daemons and children they waited for.")


# -- b: latency ------------------------------------------------------------------------------------


def latency(bench):
    samples, times = {}, bench.options.latency_reps

    def measure(system):
        for kind in ("one", "gang"):
            samples.setdefault((kind, system.name), []).append(system.latency(kind, times))

    bench.alternate(measure)
    words = {"one": "run of true on one GPU", "gang": "run of hostname on 4 nodes × 8 GPUs"}
    for kind, name in words.items():
        for label, p in (("p50", 0.5), ("p95", 0.95)):
            sides = {system: [percentile(r, p) for r in samples.get((kind, system), [])] or None
                     for system in ("tutti", "slurm")}
            bench.report.compare(f"{name}, {label}", "ms", sides["tutti"], sides["slurm"], 1,
                                 more_is_better=False)


# -- c: a long queue -------------------------------------------------------------------------------


def pending(bench):
    results, times = {}, bench.options.listing_reps

    def measure(system):
        system.fill()
        there = 0
        for goal in bench.options.pending:
            print(f"  {system.name}: filling up to {goal:,} pending jobs", flush=True)
            system.add_pending(goal - there)
            there = goal
            seen = system.pending()
            if seen != goal:
                raise RuntimeError(f"{system.name} has {seen} pending jobs, not {goal}")
            at = results.setdefault((goal, system.name), {})
            at["ps"] = system.listing("default", times)
            at["all"] = system.listing("all", times)
            at["memory"] = [system.memory()]
            at["restart"] = _restart(system, goal, bench.options.restarts)
            at["memory after restart"] = [system.memory()]

    bench.with_each(measure)
    for goal in bench.options.pending:
        ours, theirs = results.get((goal, "tutti"), {}), results.get((goal, "slurm"), {})

        def row(what, key, unit, other=None, note=""):
            bench.report.compare(f"{what}, {goal:,} pending", unit, ours.get(key),
                                 theirs.get(other or key), 1, more_is_better=False, note=note)

        row("tutti ps / squeue", "ps", "ms", note=LISTING_NOTE)
        row("tutti ps --all --json / squeue", "all", "ms", note=LISTING_NOTE)
        row("controller memory", "memory", "MiB")
        row("controller memory after restart", "memory after restart", "MiB")
        row("controller killed: answers again with all jobs", "restart", "s", note=RESTART_NOTE)


def _restart(system, goal, times):
    took = []
    for _ in range(times):
        system.settle()
        system.kill_controller()
        took.append(system.restart_controller(goal))
        left = system.pending()
        if left != goal:
            raise RuntimeError(f"{system.name} has {left} pending jobs after a restart, not {goal}")
    return took


LISTING_NOTE = ("squeue always prints every job. `tutti ps` prints its first page; "
                "`tutti ps --all --json` prints every job.")
RESTART_NOTE = ("Slurm was given 8 s to save its state before the kill, and its clock stops when "
                "squeue shows the newest job; tutti was killed at once, and its clock stops at the "
                "first answer that counts every job.")


# -- d: what a crash loses -------------------------------------------------------------------------


def crash(bench):
    count, lost = bench.options.crash_jobs, {}

    def measure(system):
        for delay in (0, 6):
            ids = system.acknowledged(count)
            time.sleep(delay)
            system.kill_controller()
            system.restart_controller()
            lost[(system.name, delay)] = (len(ids), len(ids) - system.known(ids))

    bench.with_each(measure)
    for delay in (0, 6):
        words = "at once" if delay == 0 else f"after {delay} s"
        sides = [lost.get((name, delay)) for name in ("tutti", "slurm")]
        shown = [side and f"{side[1]} of {side[0]} lost" for side in sides]
        met = None if sides[0] is None else sides[0][1] == 0
        bench.report.fact(f"{count} acknowledged, controller killed -9 {words}", *shown, met=met,
                          target="0 lost")
    if "tutti" in bench.systems:
        bench.with_one("tutti", lambda system: _burst(bench, system))


def _burst(bench, system):
    jobs, kills = bench.options.burst_jobs, bench.options.burst_kills
    seen = system.burst_with_kills(jobs, kills)
    good = (seen["acknowledged"] == seen["distinct"] == seen["ran_once"] == jobs
            and not seen["lost"] and not seen["twice"] and not seen["unasked"])
    bench.report.fact(
        f"{jobs} submissions with retries, controller killed -9 {kills} times",
        f"{seen['ran_once']} ran once, {seen['lost']} lost, {seen['twice']} twice",
        "not tried: sbatch has no key to retry with", met=good, target="each exactly once")


# -- e: a node dies --------------------------------------------------------------------------------


def node_loss(bench):
    took = {}

    def measure(system):
        took.setdefault(system.name, []).append(system.node_loss())

    if "tutti" in bench.systems:
        for _ in range(bench.options.reps):
            bench.with_one("tutti", measure)
    if "slurm" in bench.systems and bench.options.slurm_node_loss:
        bench.with_one("slurm", measure)
    worst = max(took["tutti"]) if "tutti" in took else None
    theirs = f"{max(took['slurm']):.0f} s" if "slurm" in took else "not measured"
    bench.report.fact(
        "4-node gang, one node killed -9: runs again elsewhere",
        worst and f"{worst:.1f} s (worst of {len(took['tutti'])})", theirs,
        met=None if worst is None else worst <= 15, target="≤ 15 s", note=NODE_NOTE)


NODE_NOTE = ("Default settings. Slurm's figure needs --slurm-node-loss: with its default "
             "SlurmdTimeout of 300 s it takes about eight minutes.")

SUITES = {"a": throughput, "b": latency, "c": pending, "d": crash, "e": node_loss}
