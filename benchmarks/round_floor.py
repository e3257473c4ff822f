"""What a round costs beyond its ranks: wall of stage and run_round less first rank's start to last one's end.

python -m benchmarks.round_floor [rounds]
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pytest_flagperf.cluster.deploy import stage
from pytest_flagperf.cluster.lease import Lease
from pytest_flagperf.cluster.local import LocalHost
from pytest_flagperf.round import run_round
from pytest_flagperf.runtime import Interpreter
from tests.rounds import TinyPlan, write_suite


def measure(root: Path, number: int) -> tuple[float, float]:
    """The whole wall and the ranks' own, in seconds."""
    host, directory = LocalHost(), root / f"round{number}"
    began = time.perf_counter()
    code_root = stage(host, {"suites/tiny": root / "suites" / "tiny"})
    end = run_round(
        TinyPlan(config={"max_steps": 20, "step_s": 0.05}),
        number,
        directory,
        hosts=[host],
        leases=[Lease((0, 1), ())],
        interpreter=Interpreter(sys.executable),
        code_root=code_root,
    )
    wall = time.perf_counter() - began
    assert end.state == "finished", end.fault
    exits = [json.loads(path.read_text()) for path in directory.glob("*/rank*.exit.json")]
    return wall, (max(each["ended_ms"] for each in exits) - min(each["started_ms"] for each in exits)) / 1000


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as root:
        write_suite(Path(root))
        costs = [wall - own for wall, own in (measure(Path(root), number + 1) for number in range(rounds))]
    low, middle, high = min(costs), statistics.median(costs), max(costs)
    print(f"a 2-rank round costs {middle:.3f} s beyond its ranks (min {low:.3f}, max {high:.3f}, n={rounds})")


if __name__ == "__main__":
    main()
