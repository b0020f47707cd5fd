"""Proxies side by side: how they are installed, configured, started and measured."""

import json
import os
import shutil
import socket
import subprocess
import time

from measure import TICK, descendants, end, median, stolen, wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEERS = ("nginx", "haproxy")
# Of the better of the peers.
LEAST_THROUGHPUT = 0.8
MOST_LATENCY = 1.25
# Closed loop: how many connections keep the proxy busy.
CONNECTIONS = {"short": 64, "stream": 32}
# Paced streams at a time, each a chunk every 5 ms.
PACED = 24
# Of the machine's time, taken by its host: what was measured meanwhile is of the host, and is measured again. For the slowest
# hundredth of answers anything counts that can be seen.
MOST_STOLEN = {"rate": 0.01, "latency": 0.0}
TRIES = 8


def install():
    """What is missing, without starting any service."""
    wanted = {"nginx": "nginx-light", "haproxy": "haproxy"}
    missing = [package for program, package in wanted.items() if not shutil.which(program)]
    if not missing:
        return
    if os.geteuid() != 0:
        raise SystemExit(f"missing packages: run as root, or apt-get install {' '.join(missing)}")
    # Tells Debian's scripts to start nothing.
    policy, made = "/usr/sbin/policy-rc.d", False
    if not os.path.exists(policy):
        with open(policy, "w") as f:
            f.write("#!/bin/sh\nexit 101\n")
        os.chmod(policy, 0o755)
        made = True
    try:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *missing],
                       check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    finally:
        if made:
            os.unlink(policy)


def build(as_it_is):
    if not as_it_is:
        subprocess.run(["cargo", "build", "--release", "-p", "tutti-serve", "--examples"],
                       cwd=ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return {n: os.path.join(target, "release", "examples", n) for n in ("backend", "load", "route")}


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def nginx_config(folder, port, backends, threads):
    servers = " ".join(f"server 127.0.0.1:{p};" for p in backends)
    temps = " ".join(f"{kind}_temp_path {folder}/{kind};"
                     for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""
worker_processes {threads}; daemon off; pid {folder}/nginx.pid; error_log /dev/null crit;
events {{ worker_connections 8192; }}
http {{
  access_log off; {temps} tcp_nodelay on; keepalive_timeout 75s; keepalive_requests 1000000000;
  upstream replicas {{
    zone replicas 256k; least_conn; {servers} keepalive 256; keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def haproxy_config(port, backends, threads):
    servers = "\n".join(f"  server r{n} 127.0.0.1:{p} pool-max-conn 256"
                        for n, p in enumerate(backends))
    return f"""
global
  nbthread {threads}
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 75s
  timeout server 75s
  option http-keep-alive
  option http-no-delay
  http-reuse always
frontend clients
  bind 127.0.0.1:{port}
  default_backend replicas
backend replicas
  balance leastconn
{servers}
"""


class Started:
    """What `start` starts ends with all its children, also when it fails half way."""

    def __init__(self):
        self.started = []

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        pids = [p.pid for p in self.started]
        end(set(pids) | descendants(*pids))
        for process in self.started:
            process.wait()


class Stage(Started):
    """Back ends and proxies, all running at once; only one of them has work at a time."""

    def __init__(self, options, programs, folder):
        super().__init__()
        self.options, self.programs, self.folder = options, programs, folder
        self.ports, self.pids = {}, {}

    def spawn(self, cores, argv):
        on = ",".join(map(str, cores))
        process = subprocess.Popen(["taskset", "-c", on, *argv], cwd=self.folder,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def start(self):
        first, second, nginx, haproxy, tutti = free_ports(5)
        o, backends = self.options, (first, second)
        self.spawn(o.load_cores, [self.programs["backend"], *map(str, backends)])
        self.ports = {"direct": first, "nginx": nginx, "haproxy": haproxy, "tutti": tutti}
        for name, text in (("nginx", nginx_config(self.folder, nginx, backends, o.threads)),
                           ("haproxy", haproxy_config(haproxy, backends, o.threads))):
            with open(os.path.join(self.folder, f"{name}.conf"), "w") as f:
                f.write(text)
        argv = {
            "nginx": ["nginx", "-c", f"{self.folder}/nginx.conf", "-e", "/dev/null"],
            "haproxy": ["haproxy", "-db", "-q", "-f", f"{self.folder}/haproxy.conf"],
            "tutti": [self.programs["route"], f"127.0.0.1:{tutti}", str(o.threads),
                      *(f"127.0.0.1:{p}" for p in backends)],
        }
        for name, command in argv.items():
            self.pids[name] = self.spawn(o.proxy_cores, command).pid
        for name, port in self.ports.items():
            wait_until(lambda: self.load(name, "short", 1, 0.05, 0)["requests"] > 0, 20, name,
                       pause=0.2)

    def load(self, name, kind, connections, seconds, rate):
        """One run of the load generator. Nothing is counted that it did not get in full."""
        on = ",".join(map(str, self.options.load_cores))
        done = subprocess.run(
            ["taskset", "-c", on, self.programs["load"], f"127.0.0.1:{self.ports[name]}", kind,
             str(connections), str(seconds), str(rate)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0:
            return {"requests": 0, "failed": 1}
        return json.loads(done.stdout)

    def cpu(self, name):
        """Seconds of CPU of a proxy, all its processes together."""
        total = 0
        for pid in {self.pids[name]} | descendants(self.pids[name]):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    fields = f.read().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            total += (int(fields[11]) + int(fields[12])) / TICK
        return total

    def measured(self, name, kind, connections, seconds, rate):
        """The first try that the host did not disturb, or the one that it disturbed least."""
        most = MOST_STOLEN["latency" if rate else "rate"]
        tries = []
        while len(tries) < TRIES and not (tries and tries[-1]["stolen"] <= most):
            stolen_before, all_before = stolen()
            got = self.try_once(name, kind, connections, seconds, rate)
            stolen_after, all_after = stolen()
            got["stolen"] = (stolen_after - stolen_before) / max(all_after - all_before, 1 / TICK)
            tries.append(got)
        best = min(tries, key=lambda got: got["stolen"])
        return {**best, "tries": len(tries), "disturbed": best["stolen"] > most}

    def try_once(self, name, kind, connections, seconds, rate):
        before = 0 if name == "direct" else self.cpu(name)
        got = self.load(name, kind, connections, seconds, rate)
        # The load generator counts what came after a warm-up of 15 %.
        answered = got["requests"] / 0.85
        if name != "direct" and answered:
            got["cpu_us"] = (self.cpu(name) - before) * 1e6 / answered
        return got


class Result:
    def __init__(self, rates):
        self.rates = rates
        self.samples = {}

    def add(self, what, name, got):
        self.samples.setdefault(what, {}).setdefault(name, []).append(got)

    def of(self, what, name, figure):
        values = [s[figure] for s in self.samples.get(what, {}).get(name, []) if figure in s]
        return median(values) if values else None

    def added(self, what, name, figure):
        """Over no proxy at all: the median of the differences within a round."""
        pairs = zip(self.samples[what].get(name, []), self.samples[what].get("direct", []))
        values = [a[figure] - b[figure] for a, b in pairs if figure in a and figure in b]
        return median(values) if values else None

    def rows(self):
        """What is shown: label, unit, figures by program, target by comparison with the better peer."""
        names = ("direct", *PEERS, "tutti")

        def plain(what, figure):
            return {n: self.of(what, n, figure) for n in names}

        def added(what, figure):
            return {n: self.added(what, n, figure) for n in (*PEERS, "tutti")}
        return [
            ("short answers", "per second", plain("short", "per_second"), "more"),
            ("CPU per short answer", "µs", plain("short", "cpu_us"), None),
            ("short answers, added p50", "µs", added("short-open", "p50_us"), "less"),
            ("short answers, added p99", "µs", added("short-open", "p99_us"), "less"),
            ("streams of 200 chunks", "per second", plain("stream", "per_second"), "more"),
            ("CPU per stream", "µs", plain("stream", "cpu_us"), None),
            ("paced chunks, added p50", "µs", added("paced", "chunk_p50_us"), "less"),
            ("paced chunks, added p99", "µs", added("paced", "chunk_p99_us"), "less"),
        ]

    def verdict(self, figures, better):
        """Ratio to the better peer, and whether it will do."""
        peers = [figures[n] for n in PEERS if figures.get(n) is not None]
        ours = figures.get("tutti")
        if better is None or ours is None or not peers:
            return None, None
        best = max(peers) if better == "more" else min(peers)
        if better == "more":
            return ours / best, ours >= LEAST_THROUGHPUT * best
        # Differences of less than a few microseconds are below what this can tell.
        return ours / best if best > 0 else None, ours <= MOST_LATENCY * max(best, 0) + 5

    def failed(self, name):
        return sum(s.get("failed", 0) for by in self.samples.values() for s in by.get(name, []))

    def text(self):
        lines = [["measured", "no proxy", "nginx", "HAProxy", "tutti", "of the better", "goal"]]
        for label, unit, figures, better in self.rows():
            ratio, met = self.verdict(figures, better)
            cells = [f"{label}, {unit}"]
            for name in ("direct", *PEERS, "tutti"):
                value = figures.get(name)
                cells.append("–" if value is None else f"{value:,.0f}" if abs(value) >= 100
                             else f"{value:,.1f}")
            cells.append("" if ratio is None else f"{ratio:.2f}")
            cells.append("" if met is None else "met" if met else "MISSED")
            lines.append(cells)
        failed = {n: self.failed(n) for n in ("direct", *PEERS, "tutti")}
        lines.append(["failed"] + [str(n) for n in failed.values()] + ["", ""])
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        shown = ["| " + " | ".join([line[0].ljust(widths[0])]
                                   + [c.rjust(w) for c, w in zip(line[1:], widths[1:])]) + " |"
                 for line in lines]
        shown.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
        rates = ", ".join(f"{kind} at {rate:,.0f} per second" for kind, rate in self.rates.items())
        return "\n".join(shown) + f"\n\nopen loop: {rates}\n{self.disturbed()}"

    def disturbed(self):
        taken = [s for by in self.samples.values() for samples in by.values() for s in samples]
        again = sum(s["tries"] - 1 for s in taken)
        left = sum(s["disturbed"] for s in taken)
        return (f"{len(taken) + again} measurements, {again} of them done again since the host took time; "
                f"of the {len(taken)} that count {left} were disturbed")

    def missed(self):
        missed = [label for label, _, figures, better in self.rows()
                  if self.verdict(figures, better)[1] is False]
        return missed + (["requests failed"] if self.failed("tutti") else [])

    def data(self):
        rows = [{"what": label, "unit": unit, "figures": figures,
                 "ratio": self.verdict(figures, better)[0], "met": self.verdict(figures, better)[1]}
                for label, unit, figures, better in self.rows()]
        return {"rates": self.rates, "rows": rows, "samples": self.samples}


def run(o, stage):
    """Throughput first: half of what the slowest manages is the rate of the open loop."""
    result = Result({})
    names = ["direct", *PEERS, "tutti"]
    for r in range(o.rounds):
        # Each goes first in turn.
        order = names[r % len(names):] + names[:r % len(names)]
        for kind, connections in CONNECTIONS.items():
            for name in order:
                got = stage.measured(name, kind, connections, o.seconds, 0)
                result.add(kind, name, got)
                print(f"  round {r + 1}: {name} {kind}: {got.get('per_second', 0):,.0f} per second, "
                      f"{got.get('cpu_us', 0):.1f} µs CPU each", flush=True)
    proxied = [n for n in names if n != "direct"]
    slowest = min(result.of("short", n, "per_second") for n in proxied)
    result.rates["short"] = slowest / 2
    # A paced stream takes 200 × 5 ms and a little.
    result.rates["paced"] = PACED / 1.3
    for r in range(o.rounds):
        order = names[r % len(names):] + names[:r % len(names)]
        for what, kind, connections, rate in (("short-open", "short", 64, slowest / 2),
                                              ("paced", "paced", 2 * PACED, result.rates["paced"])):
            for name in order:
                # A stream takes a second and more.
                seconds = o.seconds if kind == "short" else o.seconds + 1
                got = stage.measured(name, kind, connections, seconds, rate)
                result.add(what, name, got)
                if kind == "short":
                    says = f"p50 {got.get('p50_us', 0):.0f} µs, p99 {got.get('p99_us', 0):.0f} µs"
                else:
                    says = (f"chunk p50 {got.get('chunk_p50_us', 0):.0f} µs, "
                            f"p99 {got.get('chunk_p99_us', 0):.0f} µs")
                print(f"  round {r + 1}: {name} {what}: {says}", flush=True)
        time.sleep(0.1)
    return result
