"""Prefix affinity over real sockets: model servers, routers before them, and what came of it."""

import dataclasses
import json
import os
import subprocess
import urllib.request

import people
from measure import median, wait_until
from proxies import ROOT, Started, free_ports, haproxy_config

POLICIES = ("round robin", "least outstanding", "prefix")
# What is asked for, of round robin's and of an equal share.
LEAST_RATIO = 3.0
LEAST_SHARE = 0.5
# The router's default, in the servers' time.
METRICS_S = 2.0


@dataclasses.dataclass
class Servers:
    """An 8B model in 16 bits on an A100 with 80 GB. vLLM takes nine tenths of the memory, 16 GB are weights,
    3 for activations, and a token needs 128 KiB. Prefill: 16 GFLOP a token at half of 312 TFLOP/s."""
    replicas: int = 8
    cache_tokens: int = 404_000
    prefill_tokens_per_s: float = 9750.0
    prefill_overhead_s: float = 0.01
    token_s: float = 0.02
    slots: int = 64

    def arguments(self, scale):
        return [scale, self.cache_tokens, self.prefill_tokens_per_s, self.prefill_overhead_s,
                self.token_s, self.slots]


def build(as_it_is):
    names = ("route", "chat_backend", "chat_load")
    if not as_it_is:
        examples = [word for name in names for word in ("--example", name)]
        subprocess.run(["cargo", "build", "--release", "-p", "tutti-serve", *examples],
                       cwd=ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return {n: os.path.join(target, "release", "examples", n) for n in names}


class Stage(Started):
    """Fresh servers and one router before them: nothing is left of the run before."""

    def __init__(self, options, programs, folder, policy):
        super().__init__()
        self.options, self.programs, self.folder = options, programs, folder
        self.policy = policy

    def spawn(self, argv, **env):
        self.started.append(subprocess.Popen(
            list(map(str, argv)), cwd=self.folder, env={**os.environ, **env},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def start(self):
        o = self.options
        self.port, *self.replicas = free_ports(1 + o.servers.replicas)
        self.spawn([self.programs["chat_backend"], *o.servers.arguments(o.scale), *self.replicas])
        for port in self.replicas:
            wait_until(lambda: get(port, "/health") is not None, 20, "a back end")
        if self.policy == "round robin":
            path = os.path.join(self.folder, "haproxy.conf")
            with open(path, "w") as f:
                text = haproxy_config(self.port, self.replicas, 1)
                # Those who wait long in an overload are not to be cut off.
                f.write(text.replace("leastconn", "roundrobin").replace("75s", "600s"))
            self.spawn(["haproxy", "-db", "-q", "-f", path])
            ready = self.listens
        else:
            addresses = [f"127.0.0.1:{p}" for p in self.replicas]
            self.spawn([self.programs["route"], f"127.0.0.1:{self.port}", 1, *addresses],
                       TUTTI_POLICY=self.policy.replace(" ", "-"),
                       TUTTI_METRICS_MS=str(int(o.metrics / o.scale * 1000)))
            ready = self.all_ready
        wait_until(ready, 20, f"the router for {self.policy}", pause=0.1)

    def listens(self):
        return get(self.port, "/health") is not None

    def all_ready(self):
        text = get(self.port, "/-/endpoints")
        if text is None:
            return False
        return text.count('"ready":true') >= self.options.servers.replicas

    def load(self, path):
        """One run of the load, and what the servers counted, warm-up included."""
        o = self.options
        done = subprocess.run(
            list(map(str, [self.programs["chat_load"], path, o.scale, o.warm_up, o.measured,
                           f"127.0.0.1:{self.port}"])), stdout=subprocess.PIPE, check=True)
        stats = [json.loads(get(port, "/stats")) for port in self.replicas]
        return {**json.loads(done.stdout), "servers": stats}


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return None


class Row:
    """All rounds of a policy under a load."""

    def __init__(self, samples, replicas):
        self.samples, self.replicas = samples, replicas

    def total(self, name):
        return sum(s[name] for s in self.samples)

    def hit(self):
        return self.total("cached_tokens") / max(1, self.total("prompt_tokens"))

    def first(self, which):
        """None: no request was answered."""
        seen = [s[f"first_{which}_s"] for s in self.samples if s["answered"]]
        return median(seen) if seen else None

    def least_share(self):
        def least(sample):
            got = sorted(sample["per_replica"].values())
            # One that got nothing is not in the list.
            return got[0] if len(got) == self.replicas else 0
        return min(least(s) * self.replicas / max(1, s["answered"]) for s in self.samples)

    def failed(self):
        """Also those that had no answer when patience ended."""
        return self.total("asked") - self.total("answered")

    def late_ms(self):
        return max(s["late_p99_ms"] or 0 for s in self.samples)


def seconds(value):
    return "–" if value is None else f"{value:.3f}"


class Result:
    def __init__(self, servers):
        self.servers, self.samples, self.foreseen = servers, {}, {}

    def add(self, workload, load, policy, sample):
        self.samples.setdefault((workload, load), {}).setdefault(policy, []).append(sample)

    def foresee(self, workload, load, foreseen):
        self.foreseen.setdefault((workload, load), []).append(foreseen)

    def row(self, key, policy):
        return Row(self.samples[key][policy], self.servers.replicas)

    def ratio(self, key, policy):
        return self.row(key, policy).hit() / max(1e-9, self.row(key, "round robin").hit())

    def text(self):
        lines = [["workload", "load", "policy", "hit rate", "of round robin's", "first token mean, s",
                  "p50", "p99", "least share", "requests", "failed", "late p99, ms"]]
        for key, by in self.samples.items():
            for policy in by:
                row = self.row(key, policy)
                lines.append([key[0], f"{key[1]:.0%}", policy, f"{row.hit():.1%}",
                              f"{self.ratio(key, policy):.2f}"]
                             + [seconds(row.first(which)) for which in ("mean", "p50", "p99")]
                             + [f"{row.least_share():.2f}", str(row.total("asked")),
                                str(row.failed()), f"{row.late_ms():.1f}"])
            most = median([f["most_hit"] for f in self.foreseen[key]])
            lines.append([key[0], f"{key[1]:.0%}", "unbounded", f"{most:.1%}",
                          f"{most / max(1e-9, self.row(key, 'round robin').hit()):.2f}"] + [""] * 7)
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        shown = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths)) + " |" for line in lines]
        shown.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
        return "\n".join(shown)

    def missed(self):
        missed = []
        for key in self.samples:
            where = f"{key[0]} at {key[1]:.0%}"
            ours, robin = self.row(key, "prefix"), self.row(key, "round robin")
            if self.ratio(key, "prefix") < LEAST_RATIO:
                missed.append(f"{where}: hits {self.ratio(key, 'prefix'):.2f} times as often")
            if None in (ours.first("mean"), robin.first("mean")):
                missed.append(f"{where}: nothing was answered")
            elif ours.first("mean") >= robin.first("mean"):
                missed.append(f"{where}: first tokens come no sooner")
            if ours.least_share() < LEAST_SHARE:
                missed.append(f"{where}: a replica has {ours.least_share():.2f} of its share")
            if ours.failed():
                missed.append(f"{where}: {ours.failed()} requests failed")
        return missed

    def data(self):
        rows = [{"workload": key[0], "load": key[1], "policy": policy,
                 "hit": self.row(key, policy).hit(), "ratio": self.ratio(key, policy),
                 "least_share": self.row(key, policy).least_share(), "samples": samples}
                for key, by in self.samples.items() for policy, samples in by.items()]
        foreseen = [{"workload": key[0], "load": key[1], "rounds": rounds}
                    for key, rounds in self.foreseen.items()]
        return {"servers": dataclasses.asdict(self.servers), "rows": rows, "foreseen": foreseen,
                "missed": self.missed()}


def run(o, programs, folder):
    result = Result(o.servers)
    path = os.path.join(folder, "talks.json")
    for r in range(o.rounds):
        # Each goes first in turn, and each round has other people.
        order = POLICIES[r % len(POLICIES):] + POLICIES[:r % len(POLICIES)]
        for workload in o.workloads:
            for load in o.loads:
                trace, foreseen = people.at_load(people.WORKLOADS[workload], load, o.servers,
                                                 o.warm_up, o.warm_up + o.measured, o.seed + r)
                result.foresee(workload, load, foreseen)
                with open(path, "w") as f:
                    json.dump(trace, f)
                for policy in order:
                    with Stage(o, programs, folder, policy) as stage:
                        got = stage.load(path)
                    result.add(workload, load, policy, got)
                    print(f"  round {r + 1}: {workload} at {load:.0%}, {policy}: hit rate "
                          f"{got['cached_tokens'] / max(1, got['prompt_tokens']):.1%}, first token "
                          f"{got['first_mean_s']:.3f} s, {got['answered']} of {got['asked']} answered, "
                          f"{got['failed'] or 'none'} failed", flush=True)
    return result
