"""Write the report of a stored run with the command, and measure its cost."""

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
# Not ru_maxrss of getrusage, which starts with the memory of the parent at the fork.


@dataclass(frozen=True)
class Cost:
    """The cost of a report: the time, the peak memory of the process, and the size of the page."""

    seconds: float
    peak_mib: float
    page_mib: float


def report(run: Path, to: Path) -> Cost:
    command = [sys.executable, "-c", _MAIN, "report", str(run), "--to", str(to)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert not result["code"], done.stderr
    return Cost(result["seconds"], result["peak_mib"], to.stat().st_size / 2**20)
