"""The report of a stored run made by the command, and what that took."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_MAIN = """
import json, re, sys, time
started = time.perf_counter()
from pytest_flagperf.commands import main
code = main(sys.argv[1:])
seconds = time.perf_counter() - started
peak = int(re.search("VmHWM: *([0-9]+)", open("/proc/self/status").read().replace(chr(9), " "))[1]) / 1024
print(json.dumps({"code": code, "seconds": seconds, "peak_mib": peak}))
"""
# Not getrusage's ru_maxrss, which begins with what the parent had when it forked.


@dataclass(frozen=True)
class Cost:
    """``peak_mib`` is the most memory that the process held; ``page_mib`` the page's size."""

    seconds: float
    peak_mib: float
    page_mib: float


def report(run: Path, to: Path) -> Cost:
    command = [sys.executable, "-c", _MAIN, "report", str(run), "--to", str(to)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert not said["code"], done.stderr
    return Cost(said["seconds"], said["peak_mib"], to.stat().st_size / 2**20)
