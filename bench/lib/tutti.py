"""A tutti cluster of simulated nodes on loopback, started by `tutti up`, ended by `tutti down`."""

import json
import os
import shutil
import socket
import subprocess
import time

from measure import alive, descendants, end, kill, parents, pids_with, repeat, rss_mib
from measure import wait_until, xargs
from slurm import in_threads, shares

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BINARY = os.path.join(ROOT, "target", "release", "tutti")

ONE_GPU = {"run": "true", "gpus_per_node": 1}
BATCH = 500
# What `tutti submit` does when the controller is away: try again with the same key.
RETRY_PAUSE = 0.02


def build():
    """The release binary; cargo does nothing if it is up to date."""
    subprocess.run(["cargo", "build", "--release", "--bin", "tutti"], cwd=ROOT, check=True)


class Unreachable(Exception):
    pass


class Refused(Exception):
    def __init__(self, status, body):
        super().__init__(f"the API answered {status}: {body[:300]}")
        self.status = status


class Api:
    """One keep-alive connection. Written on a bare socket so that the client costs little."""

    def __init__(self, address, token):
        host, port = address.rsplit(":", 1)
        self.address = (host.strip("[]"), int(port))
        self.head = f"Host: {address}\r\nAuthorization: Bearer {token}\r\n"
        self.socket = None
        self.rest = b""

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket, self.rest = None, b""

    def _connect(self):
        self.socket = socket.create_connection(self.address, timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def frame(self, method, path, body=None, key=None):
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self.head}"
        if key:
            head += f"Idempotency-Key: {key}\r\n"
        if body is not None:
            head += "Content-Type: application/json\r\n"
        return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    def send(self, frame):
        """Sends one request and returns the bytes of the answer."""
        try:
            if not self.socket:
                self._connect()
            self.socket.sendall(frame)
            status, body = self._answer()
        except OSError as error:
            self.close()
            raise Unreachable(str(error)) from error
        if status >= 300:
            raise Refused(status, body.decode(errors="replace"))
        return body

    def _answer(self):
        data = self.rest
        while (cut := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        head, data = data[:cut].decode("latin-1"), data[cut + 4:]
        status, headers = int(head[9:12]), head.lower()
        at = headers.find("content-length:")
        if at < 0:
            raise OSError("the answer has no content-length")
        length = int(headers[at + 15:].split("\r\n", 1)[0])
        while len(data) < length:
            data += self._more()
        self.rest = data[length:]
        return status, data[:length]

    def _more(self):
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise ConnectionResetError("the controller closed the connection")
        return piece

    def get(self, path):
        return json.loads(self.send(self.frame("GET", path)))

    def post(self, path, body=None, key=None):
        return json.loads(self.send(self.frame("POST", path, body, key)))


class Tutti:
    name = "tutti"

    def __init__(self, folder, nodes=16, gpus=8):
        self.dir, self.nodes, self.gpus = folder, nodes, gpus
        self.data = os.path.join(folder, "data")
        self.env = dict(os.environ, TUTTI_CLUSTER=self.data, NO_COLOR="1")
        self.api = None
        self.started = set()
        self.controllers = []

    # -- processes -----------------------------------------------------------------------------

    def _run(self, *argv, check=True):
        done = subprocess.run([BINARY, *argv], env=self.env, cwd=self.dir, capture_output=True,
                              text=True)
        if check and done.returncode != 0:
            said = (done.stderr or done.stdout)[-800:]
            raise RuntimeError(f"tutti {' '.join(argv)} exited with {done.returncode}: {said}")
        return done.stdout

    def _read(self, name):
        with open(os.path.join(self.data, name)) as f:
            return f.read().strip()

    def start(self):
        """Seconds until every node is ready."""
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir)
        os.chmod(self.dir, 0o755)
        began = time.monotonic()
        self._run("up", "--nodes", str(self.nodes), "--gpus-per-node", str(self.gpus), "--simulate",
                  "--detach", "--data-dir", self.data)
        self.address = self._read("endpoint")
        self.api = self.client()
        self._wait_ready()
        took = time.monotonic() - began
        self.started |= {self.controller} | set(self.agents().values())
        return took

    def _wait_ready(self):
        wait_until(lambda: self._cluster().get("nodes_ready") == self.nodes, 60, "all nodes ready")

    def _cluster(self):
        try:
            return self.api.get("/api/v1/cluster")
        except Unreachable:
            return {}

    def stop(self):
        """`tutti down`, then by pid everything that still carries our folder."""
        if not os.path.isdir(self.dir):
            return
        if self.api:
            self.api.close()
        try:
            subprocess.run([BINARY, "down", "--data-dir", self.data], env=self.env, cwd=self.dir,
                           capture_output=True, timeout=60)
        except (subprocess.TimeoutExpired, FileNotFoundError):
            pass
        for child in self.controllers:
            child.poll()
        left = pids_with(self.data) | {pid for pid in self.started if alive(pid)}
        end(left | descendants(*left), patience=5)
        for child in self.controllers:
            child.wait()
        self.started.clear()
        self.controllers.clear()
        shutil.rmtree(self.dir, ignore_errors=True)

    def client(self):
        return Api(self.address, self._read("admin.token"))

    @property
    def controller(self):
        return int(self._read("controller.pid"))

    def agents(self):
        """Node name to the pid of its agent."""
        return {name: agent["pid"] for name, agent in json.loads(self._read("up.json"))["agents"]}

    def groups(self):
        agents = set(self.agents().values())
        return {"controller": {self.controller}, "agents": agents | descendants(*agents)}

    def version(self):
        return self._run("--version").strip()

    # -- jobs ----------------------------------------------------------------------------------

    def counters(self):
        return self.api.get("/api/v1/cluster")["tasks"]

    def wait_idle(self):
        def idle():
            tasks = self.counters()
            return not any(tasks.get(s) for s in ("pending", "starting", "running", "stopping"))

        wait_until(idle, 300, "the queue to empty")

    def wait_done(self, before, count, seconds=600):
        def done():
            now = self.counters()
            return now.get("completed", 0) - before.get("completed", 0) >= count

        wait_until(done, seconds, f"{count} jobs to complete", pause=0.01)
        failed = self.counters().get("failed", 0) - before.get("failed", 0)
        if failed:
            raise RuntimeError(f"{failed} tutti jobs failed")

    def submit_array(self, count):
        self._run("submit", "--wrap", "true", "-G", "1", "--array", f"1-{count}")

    def submit_processes(self, count):
        xargs(count, [BINARY, "submit", "--wrap", "true", "-G", "1"], self.env, self.dir)

    def submit_api(self, count, clients=8):
        errors = []

        def client(share):
            api = self.client()
            frame = api.frame("POST", "/api/v1/jobs", {"spec": ONE_GPU})
            try:
                for _ in range(share):
                    api.send(frame)
            except (Unreachable, Refused) as error:
                errors.append(error)
            finally:
                api.close()

        in_threads(client, shares(count, clients))
        if errors:
            raise RuntimeError(f"{len(errors)} clients failed; the first: {errors[0]}")

    def start_rest(self):
        """The API is the controller's own."""

    def latency(self, kind, times):
        argv = {
            "one": [BINARY, "run", "-G", "1", "--", "true"],
            "gang": [BINARY, "run", "-N", "4", "-G", "8", "--", "hostname"],
        }[kind]
        return repeat(argv, self.env, self.dir, times)

    # -- a long queue --------------------------------------------------------------------------

    def fill(self):
        spec = {"run": "exec sleep 100000", "gpus_per_node": self.gpus, "time": "1d"}
        for _ in range(self.nodes):
            self.api.post("/api/v1/jobs", {"spec": spec})
        wait_until(lambda: self.counters().get("running", 0) == self.nodes, 60, "a full cluster")

    def add_pending(self, count):
        spec = dict(ONE_GPU, time="1h")
        for size in [BATCH] * (count // BATCH) + [count % BATCH]:
            if size:
                answers = self.api.post("/api/v1/jobs:batch", [{"spec": spec}] * size)
                refused = [a for a in answers if "id" not in a]
                if refused:
                    raise RuntimeError(f"refused: {refused[0]}")

    def pending(self):
        return self.counters().get("pending", 0)

    def listing(self, kind, times):
        extra = ["--all", "--json"] if kind == "all" else []
        return repeat([BINARY, "ps", *extra], self.env, self.dir, times, warm_up=1)

    def memory(self):
        return rss_mib(self.controller)

    def settle(self):
        """What was acknowledged is on disk already."""

    def kill_controller(self):
        pid = self.controller
        kill(pid)
        wait_until(lambda: not alive(pid), 10, "the controller to die", pause=0.002)

    def restart_controller(self, count=None):
        """Seconds until it answers, with `count` pending jobs if given."""
        began = time.monotonic()
        log = open(os.path.join(self.dir, "controller.log"), "a")
        child = subprocess.Popen(
            [BINARY, "controller", "--data-dir", self.data, "--listen", self.address],
            env=self.env, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )
        log.close()
        self.controllers.append(child)
        self.started.add(child.pid)

        def answers():
            if child.poll() is not None:
                raise RuntimeError(f"the controller ended with {child.returncode}: {self._log()}")
            tasks = self._cluster().get("tasks")
            return tasks is not None and (count is None or tasks.get("pending", 0) == count)

        wait_until(answers, 120, "the controller to answer", pause=0.005)
        return time.monotonic() - began

    def _log(self):
        with open(os.path.join(self.dir, "controller.log")) as f:
            return f.read()[-800:]

    # -- losses --------------------------------------------------------------------------------

    def acknowledged(self, count):
        """Ids that the API answered to 8 clients; held, so that nothing starts."""
        ids = []

        def client(share):
            api = self.client()
            frame = api.frame("POST", "/api/v1/jobs", {"spec": dict(ONE_GPU, hold=True)})
            ids.extend(json.loads(api.send(frame))["id"] for _ in range(share))
            api.close()

        in_threads(client, shares(count, 8))
        return ids

    def known(self, ids):
        there, after = set(), None
        while True:
            query = "/api/v1/jobs?limit=10000" + (f"&after={after}" if after else "")
            page = self.api.get(query)
            there |= {job["id"] for job in page["jobs"]}
            after = page.get("next")
            if not after:
                return sum(1 for job in ids if job in there)

    def burst_with_kills(self, count=1000, kills=20, clients=8):
        """Clients that retry with a key while the controller is killed again and again.

        Every job appends its id to one file, so the file says what really ran.
        """
        ran = os.path.join(self.dir, "ran")
        open(ran, "w").close()
        os.chmod(ran, 0o666)
        spec = {"run": f"echo $TUTTI_TASK_ID >> {ran}", "gpus_per_node": 1}
        acknowledged, errors = [], []

        def client(numbers):
            api = self.client()
            try:
                for n in numbers:
                    acknowledged.append(self._insist(api, spec, f"burst-{n}"))
            except Refused as error:
                errors.append(error)
            finally:
                api.close()

        def killer(_):
            try:
                for n in range(1, kills + 1):
                    goal = n * count // (kills + 1)
                    wait_until(lambda: len(acknowledged) >= goal or errors, 120, "the burst", 0.001)
                    self.kill_controller()
                    self.restart_controller()
            except (RuntimeError, TimeoutError, OSError) as error:
                errors.append(error)

        def either(job):
            job[0](job[1])

        work = [(client, range(i, count, clients)) for i in range(clients)]
        in_threads(either, work + [(killer, None)])
        if errors:
            raise RuntimeError(f"the burst failed: {errors[0]}")
        self._wait_ready()
        self.wait_idle()
        return self._judge(ran, acknowledged, kills)

    @staticmethod
    def _insist(api, spec, key, patience=60):
        frame, give_up = api.frame("POST", "/api/v1/jobs", {"spec": spec}, key), None
        while True:
            try:
                return json.loads(api.send(frame))["id"]
            except Unreachable as error:
                give_up = give_up or time.monotonic() + patience
                if time.monotonic() > give_up:
                    raise Refused(0, f"unreachable for {patience} s: {error}") from error
                time.sleep(RETRY_PAUSE)
            except Refused as error:
                # 503 is what a controller says while it starts or stops; the key makes a retry safe.
                if error.status != 503:
                    raise
                time.sleep(RETRY_PAUSE)

    @staticmethod
    def _judge(ran, acknowledged, kills):
        with open(ran) as f:
            lines = f.read().split()
        times = {}
        for line in lines:
            times[line] = times.get(line, 0) + 1
        return {
            "kills": kills,
            "acknowledged": len(acknowledged),
            "distinct": len(set(acknowledged)),
            "ran_once": sum(1 for job in set(acknowledged) if times.get(job) == 1),
            "lost": sum(1 for job in set(acknowledged) if job not in times),
            "twice": sum(1 for n in times.values() if n > 1),
            "unasked": sum(1 for job in times if job not in set(acknowledged)),
        }

    def node_loss(self, seconds=120):
        """kill -9 of one node's agent, shims and ranks: seconds until the gang runs elsewhere."""
        spec = {"run": "exec sleep 100000", "nodes": 4, "gpus_per_node": 8}
        job = self.api.post("/api/v1/jobs", {"spec": spec})["id"]
        wait_until(lambda: self._job(job)["state"] == "running", 60, "the gang to run")
        first = self._job(job)
        victim = first["node_names"][1]
        began = time.monotonic()
        for pid in self._processes_of(victim):
            kill(pid)

        def elsewhere():
            now = self._job(job)
            return (now["state"] == "running" and now["attempt"] != first["attempt"]
                    and victim not in now["node_names"])

        wait_until(elsewhere, seconds, "the gang to run elsewhere")
        took = time.monotonic() - began
        self.api.post(f"/api/v1/jobs/{job}/cancel")
        return took

    def _job(self, job):
        return self.api.get(f"/api/v1/jobs/{job}")

    def _processes_of(self, node):
        """The agent and all below it, the node's ranks, and the shims that watch those."""
        agent = self.agents()[node]
        ranks = pids_with(f"TUTTI_NODE={node}\0", ("environ",))
        ranks = {pid for pid in ranks if self._is_ours(pid)}
        table = parents()
        shims = {table[pid] for pid in ranks if pid in table} - {0, 1, os.getpid()}
        shims = {pid for pid in shims if self._is_tutti(pid)}
        return {agent} | descendants(agent) | ranks | shims

    def _is_ours(self, pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                return b"TUTTI_JOB_ID=" in f.read()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False

    @staticmethod
    def _is_tutti(pid):
        try:
            return os.path.realpath(os.readlink(f"/proc/{pid}/exe")) == os.path.realpath(BINARY)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False
