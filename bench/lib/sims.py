"""What the benches of the scheduler share: the release build, the data, two runs at a time."""

import csv
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("TUTTI_DATA", ROOT.parent / "shared" / "data"))
# A binary that is built already, such as an older one to compare with.
READY = os.environ.get("TUTTI_BIN")
TUTTI = Path(READY) if READY else ROOT / "target" / "release" / "tutti"
AT_ONCE = 2


def build(*more):
    """Builds the release binary, or what `more` says instead."""
    if READY and not more:
        return
    what = more or ("-p", "tutti")
    subprocess.run(["cargo", "build", "--release", "--quiet", *what], cwd=ROOT, check=True)


def sim(*args):
    """Runs `tutti sim ... --json` and gives its answer."""
    command = [str(TUTTI), "sim", *map(str, args), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def in_parallel(work, tasks):
    """Results in the order of the tasks, with a line of progress on a terminal."""
    tasks = list(tasks)
    results = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for n, result in enumerate(pool.map(work, tasks), 1):
            results.append(result)
            if sys.stderr.isatty():
                print(f"\r{n} of {len(tasks)} ", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r" + " " * 30 + "\r", end="", file=sys.stderr)
    return results


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def table(head, lines):
    """Columns flush right but for the first."""
    cells = [head, *[[str(c) for c in line] for line in lines]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    for line in cells:
        first = line[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        print("  ".join([first, *rest]).rstrip())


class Claims:
    """What must hold. The exit code says whether it does."""

    def __init__(self):
        self.broken = 0

    def check(self, holds, text):
        print(("holds:  " if holds else "BROKEN: ") + text)
        self.broken += not holds

    def exit(self):
        sys.exit(1 if self.broken else 0)
