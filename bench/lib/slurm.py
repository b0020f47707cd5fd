"""A Slurm cluster of fake nodes on loopback: its own munge, its own folder, ended by pid.

Set as a good administrator would for many short jobs: the scheduler runs at once and looks deep,
backfill every ten seconds, no accounting database, no process tracking that costs anything.
"""

import http.client
import os
import pwd
import re
import shutil
import socket
import subprocess
import threading
import time

from measure import alive, end, kill, pids_with, repeat, rss_mib, wait_until, xargs

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge", "slurmrestd"]
PROGRAMS = ["slurmctld", "slurmd", "sbatch", "srun", "squeue", "sdiag", "munged", "slurmrestd"]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
REST_USER = "nobody"

SCHEDULER = {
    "htc": "batch_sched_delay=0,sched_min_interval=20000,sched_interval=1,"
    "default_queue_depth=2000,bf_interval=10,bf_continue,max_rpc_cnt=150",
    "htcdefer": "defer,batch_sched_delay=0,sched_min_interval=20000,sched_interval=1,"
    "default_queue_depth=2000,bf_interval=10,bf_continue,max_rpc_cnt=150",
    "default": "",
}


class CounterReset(Exception):
    """sdiag's counters start again at midnight; the measurement must be repeated."""


def install():
    """Debian's packages, when something is missing. Their services are not started."""
    missing = [p for p in PROGRAMS if not shutil.which(p, path=PATH)]
    if not missing:
        return
    apt = f"apt-get install {' '.join(PACKAGES)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SystemExit(f"Slurm is not complete ({', '.join(missing)} missing). As root: {apt}")
    print(f"installing Slurm: {apt}", flush=True)
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive", RUNLEVEL="1")
    subprocess.run(["apt-get", "update", "-qq"], env=env, check=True)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES],
        env=env, check=True, stdout=subprocess.DEVNULL,
    )


class Slurm:
    name = "slurm"

    def __init__(self, folder, nodes=16, gpus=8, scheduler="htc", extra=""):
        if os.geteuid() != 0:
            raise SystemExit("Slurm's half needs root (fake device files, SlurmUser=root); "
                             "run as root, or use --system tutti")
        self.dir = folder
        self.nodes, self.gpus = nodes, gpus
        self.scheduler, self.extra = scheduler, extra
        self.env = {"PATH": PATH, "HOME": "/root", "SLURM_CONF": self.path("etc/slurm.conf")}
        self.daemons = set()
        self.newest = None

    # -- files ---------------------------------------------------------------------------------

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def _write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)

    def _layout(self):
        shutil.rmtree(self.dir, ignore_errors=True)
        for name in ("etc", "state", "spool", "log", "run", "dev", "munge"):
            os.makedirs(self.path(name))
        for folder in (self.dir, self.path("run"), self.path("etc"), self.path("munge")):
            os.chmod(folder, 0o755)
        for gpu in range(self.gpus):
            # Distinct device files with the numbers of /dev/null: Slurm counts them, nobody opens them.
            os.mknod(self.path(f"dev/gpu{gpu}"), 0o666 | 0o020000, os.makedev(1, 3))

    def _configure(self):
        host, last = socket.gethostname().split(".")[0], f"{self.nodes:04d}"
        names, cpus = f"n[0001-{last}]", 64
        settings = {
            "ClusterName": "bench",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmUser": "root",
            "SlurmctldPort": 16817,
            "SlurmdPort": 17000,
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.path('munge/socket')}",
            "CredType": "cred/munge",
            "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
            "StateSaveLocation": self.path("state"),
            "SlurmdSpoolDir": self.path("spool/%n"),
            "SlurmctldPidFile": self.path("run/slurmctld.pid"),
            "SlurmdPidFile": self.path("run/slurmd.%n.pid"),
            "SlurmctldLogFile": self.path("log/slurmctld.log"),
            "SlurmdLogFile": self.path("log/slurmd.%n.log"),
            "SlurmctldDebug": "error",
            "SlurmdDebug": "error",
            "ProctrackType": "proctrack/pgid",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "JobCompType": "jobcomp/none",
            "SwitchType": "switch/none",
            "MpiDefault": "none",
            "SchedulerType": "sched/backfill",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "PriorityType": "priority/basic",
            "GresTypes": "gpu",
            "MaxJobCount": 250000,
            "MaxArraySize": 100001,
            "ReturnToService": 2,
            "SlurmdParameters": "config_overrides",
            "PropagateResourceLimits": "NONE",
            "MessageTimeout": 30,
            "TCPTimeout": 10,
            "KillWait": 5,
            "TreeWidth": 64,
        }
        if SCHEDULER[self.scheduler]:
            settings["SchedulerParameters"] = SCHEDULER[self.scheduler]
        lines = [f"{key}={value}" for key, value in settings.items()]
        if self.extra:
            lines.append(self.extra)
        lines.append(
            f"NodeName={names} NodeHostname={host} NodeAddr=127.0.0.1 "
            f"Port=[17001-{17000 + self.nodes}] CPUs={cpus} Boards=1 SocketsPerBoard=1 "
            f"CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=20000 Gres=gpu:{self.gpus} "
            "State=UNKNOWN"
        )
        common = f"Nodes={names} MaxTime=INFINITE DefaultTime=10"
        lines.append(f"PartitionName=main {common} Default=YES State=UP OverSubscribe=NO")
        lines.append(f"PartitionName=off {common} State=DOWN")
        self._write("etc/slurm.conf", "\n".join(lines) + "\n")
        devices = self.path(f"dev/gpu[0-{self.gpus - 1}]")
        self._write("etc/gres.conf", f"AutoDetect=off\nNodeName={names} Name=gpu File={devices}\n")

    # -- processes -----------------------------------------------------------------------------

    def _run(self, *argv, check=True):
        done = subprocess.run(argv, env=self.env, cwd=self.dir, capture_output=True, text=True)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)} exited with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    def _start(self, pid_file, *argv):
        self._run(*argv)
        wait_until(lambda: self._pid(pid_file) is not None, 10, f"{argv[0]} to write its pid")
        self.daemons.add(self._pid(pid_file))

    def _pid(self, pid_file):
        try:
            with open(self.path(pid_file)) as f:
                return int(f.read())
        except (FileNotFoundError, ValueError):
            return None

    def _start_munge(self):
        with open(self.path("munge/key"), "wb") as f:
            os.fchmod(f.fileno(), 0o600)
            f.write(os.urandom(1024))
        self._start(
            "munge/pid", "munged", "--num-threads=4", "--force",
            f"--socket={self.path('munge/socket')}", f"--key-file={self.path('munge/key')}",
            f"--pid-file={self.path('munge/pid')}", f"--log-file={self.path('munge/log')}",
            f"--seed-file={self.path('munge/seed')}",
        )

    def _start_controller(self):
        self._start("run/slurmctld.pid", "slurmctld")

    def _answers(self):
        return "UP" in self._run("scontrol", "ping", check=False)

    def _idle_nodes(self):
        return self._run("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D", check=False).strip()

    def start(self):
        """Seconds until every node is idle."""
        self._layout()
        self._configure()
        self._start_munge()
        began = time.monotonic()
        self._start_controller()
        wait_until(self._answers, 30, "slurmctld to answer")
        for i in range(1, self.nodes + 1):
            os.makedirs(self.path(f"spool/n{i:04d}"))
            self._start(f"run/slurmd.n{i:04d}.pid", "slurmd", "-N", f"n{i:04d}")
        wait_until(lambda: self._idle_nodes() == str(self.nodes), 60, "all nodes idle", pause=0.1)
        return time.monotonic() - began

    def stop(self):
        """Everything that was started, then everything that still carries our configuration."""
        if not self.daemons and not os.path.isdir(self.dir):
            return
        # Not asked nicely: scancel takes minutes for a long queue, and nobody needs its state.
        if self.controller:
            kill(self.controller)
        end(self.daemons)
        self.daemons.clear()
        end(pids_with(self.env["SLURM_CONF"]), patience=2)
        shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def controller(self):
        return self._pid("run/slurmctld.pid")

    def groups(self):
        agents = {self._pid(f"run/slurmd.n{i:04d}.pid") for i in range(1, self.nodes + 1)}
        return {"controller": {self.controller}, "agents": agents - {None}}

    def version(self):
        return self._run("slurmctld", "-V").strip()

    # -- jobs ----------------------------------------------------------------------------------

    def counters(self):
        text = self._run("sdiag")
        return {
            key: int(re.search(rf"Jobs {key}:\s+(\d+)", text).group(1))
            for key in ("submitted", "completed", "failed")
        }

    def wait_idle(self):
        busy = ("squeue", "-h", "-t", "PD,R,CG,CF", "-o", "%i")
        wait_until(lambda: not self._run(*busy).strip(), 300, "the queue to empty", pause=0.2)

    def wait_done(self, before, count, seconds=600):
        def done():
            now = self.counters()
            if now["completed"] < before["completed"]:
                raise CounterReset
            return now["completed"] - before["completed"] >= count

        wait_until(done, seconds, f"{count} jobs to complete", pause=0.2)
        failed = self.counters()["failed"] - before["failed"]
        if failed:
            raise RuntimeError(f"{failed} Slurm jobs failed")

    SBATCH = ("sbatch", "-Q", "-o", "/dev/null", "--gres=gpu:1")

    def submit_array(self, count):
        self._run(*self.SBATCH, f"--array=1-{count}", "--wrap", "true")

    def submit_processes(self, count):
        xargs(count, [*self.SBATCH, "--wrap", "true"], self.env, self.dir)

    def submit_api(self, count, clients=8):
        """slurmrestd, by keep-alive connections on its socket."""
        body = (
            '{"script":"#!/bin/sh\\ntrue\\n","job":{"environment":{"PATH":"/usr/bin:/bin"},'
            '"current_working_directory":"/tmp","standard_output":"/dev/null",'
            '"standard_error":"/dev/null","gres":"gpu:1"}}'
        )
        errors = []

        def client(share):
            link = _UnixConnection(self.path("run/rest/socket"))
            try:
                for _ in range(share):
                    link.request("POST", "/slurm/v0.0.38/job/submit", body,
                                 {"Content-Type": "application/json"})
                    answer = link.getresponse()
                    text = answer.read()
                    if answer.status != 200 or b'"job_id"' not in text:
                        raise RuntimeError(f"slurmrestd said {answer.status}: {text[-300:]!r}")
            except (OSError, RuntimeError, http.client.HTTPException) as error:
                errors.append(error)
            finally:
                link.close()

        in_threads(client, shares(count, clients))
        if errors:
            raise RuntimeError(f"{len(errors)} REST clients failed; the first: {errors[0]}")

    def start_rest(self):
        """slurmrestd refuses to run as root or as SlurmUser, so it and its clients are `nobody`."""
        user = pwd.getpwnam(REST_USER)
        os.makedirs(self.path("run/rest"))
        os.chown(self.path("run/rest"), user.pw_uid, user.pw_gid)
        log = open(self.path("log/slurmrestd.log"), "w")
        daemon = subprocess.Popen(
            ["slurmrestd", "-a", "rest_auth/local", "-s", "openapi/v0.0.38", "-t", "8",
             f"unix:{self.path('run/rest/socket')}"],
            env=self.env, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            user=user.pw_uid, group=user.pw_gid, extra_groups=[],
        )
        self.daemons.add(daemon.pid)
        wait_until(lambda: os.path.exists(self.path("run/rest/socket")), 10, "slurmrestd")

    def latency(self, kind, times):
        argv = {
            "one": ["srun", "-n1", "--gres=gpu:1", "true"],
            "gang": ["srun", "-N4", "--gres=gpu:8", "hostname"],
        }[kind]
        return repeat(argv, self.env, self.dir, times)

    # -- a long queue --------------------------------------------------------------------------

    def fill(self):
        """Every GPU taken by jobs that do not end."""
        for _ in range(self.nodes):
            self._run("sbatch", "-Q", "-o", "/dev/null", "-N1", f"--gres=gpu:{self.gpus}",
                      "-t", "1440", "--wrap", "exec sleep 100000")
        full = ("squeue", "-h", "-t", "R", "-o", "%i")
        wait_until(lambda: len(self._run(*full).split()) == self.nodes, 60, "a full cluster", 0.2)

    def add_pending(self, count):
        xargs(count, [*self.SBATCH, "-t", "60", "--wrap", "true"], self.env, self.dir)

    def pending(self):
        return len(self._run("squeue", "-h", "-r", "-t", "PD", "-o", "%i").split())

    def listing(self, kind, times):
        return repeat(["squeue"], self.env, self.dir, times, warm_up=1)

    def memory(self):
        return rss_mib(self.controller)

    def settle(self):
        """State is saved with a delay; a restart right now would measure an older file."""
        self.newest = max(self._run("squeue", "-h", "-t", "PD", "-o", "%i").split(), key=int)
        time.sleep(8)

    def kill_controller(self):
        pid = self.controller
        kill(pid)
        wait_until(lambda: not alive(pid), 10, "slurmctld to die")
        self.daemons.discard(pid)
        os.unlink(self.path("run/slurmctld.pid"))

    def restart_controller(self, count=None):
        """Seconds until it answers; with `count`, until it shows the newest of its pending jobs.

        A ping is answered before the jobs are read, so a ping proves nothing. Asking for one job is
        the cheapest question that does; the whole queue is counted after the clock has stopped.
        """
        question = ["squeue", "-h", "-o", "%i"] + (["-j", self.newest] if count else ["-t", "R"])
        began = time.monotonic()
        self._start_controller()
        asked = []
        while time.monotonic() - began < 300:
            # A client that finds nobody sleeps for a second; one every 50 ms finds the moment.
            asked.append(subprocess.Popen(question, env=self.env, cwd=self.dir, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
            time.sleep(0.05)
            ended = [ask for ask in asked if ask.poll() == 0]
            if any(not count or ask.stdout.read().strip() == self.newest for ask in ended):
                took = time.monotonic() - began
                for ask in asked:
                    ask.kill()
                    ask.communicate()
                return took
            asked = [ask for ask in asked if ask.poll() is None]
        raise TimeoutError("waited 300 s for slurmctld to answer")

    # -- losses --------------------------------------------------------------------------------

    def acknowledged(self, count):
        """Job ids that sbatch printed, submitted by 8 at a time to a partition that starts nothing."""
        argv = ["sbatch", "--parsable", "-p", "off", "-o", "/dev/null", "--gres=gpu:1",
                "--wrap", "true"]
        return xargs(count, argv, self.env, self.dir).split()

    def known(self, ids):
        there = set(self._run("squeue", "-h", "-r", "-t", "all", "-o", "%i").split())
        return sum(1 for job in ids if job in there)

    def node_loss(self, seconds=1200):
        """kill -9 of one node's daemon, step daemon and processes: seconds until it runs elsewhere."""
        job = self._run("sbatch", "--parsable", "-o", "/dev/null", "-N4", "--gres=gpu:8", "-t", "60",
                        "--requeue", "--wrap", "exec sleep 100000").strip()
        wait_until(lambda: self._job(job)[0] == "RUNNING", 60, "the gang to run", 0.2)
        time.sleep(3)
        victim = self._job(job)[1]
        daemon = self._pid(f"run/slurmd.{victim}.pid")
        steps = {pid for pid in pids_with(f"slurmstepd: [{job}.", ("cmdline",))}
        sleepers = {pid for pid in pids_with(f"SLURM_JOB_ID={job}\0", ("environ",))}
        began = time.monotonic()
        for pid in {daemon} | steps | sleepers:
            kill(pid)
        self.daemons.discard(daemon)

        def elsewhere():
            state, node = self._job(job)
            return state == "RUNNING" and node != victim

        wait_until(elsewhere, seconds, "the gang to run elsewhere", 0.2)
        return time.monotonic() - began

    def _job(self, job):
        text = self._run("scontrol", "-o", "show", "job", job, check=False)
        state = re.search(r"JobState=(\S+)", text)
        node = re.search(r"BatchHost=(\S+)", text)
        return (state and state.group(1), node and node.group(1))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.socket_path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.socket_path)


def shares(count, clients):
    """`count` split into `clients` nearly equal parts."""
    return [count // clients + (1 if i < count % clients else 0) for i in range(clients)]


def in_threads(function, arguments):
    threads = [threading.Thread(target=function, args=(a,)) for a in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
