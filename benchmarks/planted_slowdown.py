"""Is a planted slowdown flagged, and are honest runs left alone? For real, on this machine's CPU.

    .venv/bin/python benchmarks/planted_slowdown.py DIR [--honest 30] [--slow 10] [--minutes 25] [--slower 8]

Each run is pytest from the shell: a small-scale suite, one card, three rounds for throughput only. Its backward pass is
the suite's own; in slow runs it then does nothing for 8 % of the step, so that the training itself is slower and no
number is touched. The vendor's file that does it is the same in all runs, and so is their fingerprint: whether it does
is asked of a file beside the tree. After the first honest runs, honest and slow ones take turns. Slow runs are judged
by the honest ones before them, and then put aside.

Everything is kept in DIR, the code as it was at first too: started again, it goes on where it was. What is there is
told when the minutes are over.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from pytest_flagperf.results import history, store
from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.comparison import JUDGED
from pytest_flagperf.results.history import Entry
from pytest_flagperf.results.units import count, quantity

REPO = Path(__file__).resolve().parent.parent
HONEST, SLOW = "honest", "slow"
CODE = ("pytest_flagperf", "flagperf_driver")
FIRST = 10
"""Honest runs before the first slow one."""
ADAPTER = '''"""The suite's own backward pass, and then a rest where {switch} says how long."""

import time
from pathlib import Path

from flagperf_driver.pytorch import steps

SHARE = float(Path({switch!r}).read_text())
_last = [None]


def backward(ctx, loss, scaler):
    steps.backward(ctx, loss, scaler)
    now = time.perf_counter()
    if _last[0] is not None and SHARE:
        end = now + (now - _last[0]) * SHARE / (1 - SHARE)
        while time.perf_counter() < end:
            pass  # who sleeps gives his core away, and on a busy machine gets it back much later
    _last[0] = time.perf_counter()
'''


@dataclass(frozen=True)
class Done:
    """A run that ended; ``code`` is what pytest said."""

    kind: str
    run: str
    code: int
    seconds: float


@dataclass(frozen=True)
class Verdict:
    """What the earlier honest runs make of a run."""

    kind: str
    run: str
    word: str
    change: float
    code: int


class Bench:
    """The tree, the runs and what is known of them."""

    def __init__(self, root: Path, model: str, steps: int, share: float) -> None:
        self.root, self.model, self.steps, self.share = root.resolve(), model, steps, share
        self.tree, self.reports, self.aside = self.root / "tree", self.root / "reports", self.root / "slow"
        self.switch, self.log = self.root / "slower", self.root / "runs.jsonl"
        for folder in (self.reports, self.aside):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.tree.exists():
            self._plant()

    def _plant(self) -> None:
        made = self.root / ".tree"
        shutil.rmtree(made, ignore_errors=True)
        for folder in ("suites/common", f"suites/{self.model}", "vendors/cpu", *CODE):
            shutil.copytree(REPO / folder, made / folder, ignore=shutil.ignore_patterns("__pycache__"))
        extern = made / "vendors" / "cpu" / f"{self.model}-pytorch" / "extern"
        extern.mkdir(parents=True)
        (extern / "trainer_adapter.py").write_text(ADAPTER.format(switch=str(self.switch)), encoding="utf-8")
        (made / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        made.rename(self.tree)

    @property
    def done(self) -> list[Done]:
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [Done(**json.loads(line)) for line in lines]

    def tidy(self) -> None:
        """What an earlier start began and did not end is no run."""
        known = {one.run for one in self.done if one.kind == HONEST}
        for path in self.reports.glob("run*"):
            if path.name not in known:
                shutil.rmtree(path)

    def next(self, honest: int, slow: int) -> str | None:
        """Honest ones first, then in turns, until there are so many of each."""
        there = {kind: sum(one.kind == kind for one in self.done) for kind in (HONEST, SLOW)}
        left = {HONEST: honest - there[HONEST], SLOW: slow - there[SLOW]}
        if left[HONEST] <= 0 and left[SLOW] <= 0:
            return None
        if there[HONEST] < min(FIRST, honest) or left[SLOW] <= 0:
            return HONEST
        return (
            SLOW if left[HONEST] <= 0 or there[SLOW] * left[HONEST] <= (there[HONEST] - FIRST) * left[SLOW] else HONEST
        )

    def run(self, kind: str) -> Done:
        self.switch.write_text(str(self.share if kind == SLOW else 0.0), encoding="utf-8")
        before = set(self.reports.glob("run*"))
        command = [
            sys.executable, "-m", "pytest", f"suites/{self.model}", "--vendor=cpu", "--nodes=1x1", "--repeat=3",
            "--scale=small", "--throughput-only", f"--set=throughput_steps={self.steps}", f"--reports={self.reports}",
            "--history=fail", "-q", "-p", "no:cacheprovider",
        ]  # fmt: skip
        start = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(self.tree)}
        ended = subprocess.run(command, cwd=self.tree, env=environment, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        made = sorted(set(self.reports.glob("run*")) - before)
        if not made or ended.returncode not in (0, 1):
            sys.exit(f"{' '.join(command)} failed:\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}")
        if kind == SLOW:
            shutil.move(str(made[-1]), self.aside / made[-1].name)
        done = Done(kind, made[-1].name, ended.returncode, round(seconds, 1))
        with self.log.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(done)) + "\n")
        return done

    # -- what came of it -------------------------------------------------------------------------------------

    def entries(self) -> list[tuple[Done, Entry]]:
        found = []
        for one in self.done:
            run = store.load_run((self.aside if one.kind == SLOW else self.reports) / one.run)
            found += [(one, entry) for case in run.cases for entry in history.entries_of([(one.run, run)], case.case)]
        return found

    def verdicts(self) -> Iterator[Verdict]:
        """Of each run that has enough honest ones before it."""
        earlier: list[Entry] = []
        for one, entry in self.entries():
            judged = [_judged(earlier, entry, metric) for metric in JUDGED]
            if len(earlier) >= noise.FEWEST:
                worse = any(each.word == noise.WORSE for each in judged)
                yield Verdict(one.kind, one.run, noise.WORSE if worse else "", judged[-1].change or 0.0, one.code)
            if one.kind == HONEST:
                earlier.append(entry)


def _judged(earlier: Sequence[Entry], entry: Entry, metric: str) -> noise.Judgement:
    return noise.judge([each.values(metric) for each in earlier], entry.values(metric), direction="higher")


def told(bench: Bench) -> Iterator[str]:
    verdicts, entries = list(bench.verdicts()), bench.entries()
    titles = {HONEST: "honest", SLOW: f"slower by {bench.share:.0%}"}
    yield f"{bench.model}, one card, three rounds of {bench.steps} steps, {count(len(entries), 'run')}:"
    yield ""
    yield "| runs | judged | called worse | pytest's exit code 1 | p_core against its level, median |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for kind, title in titles.items():
        mine = [one for one in verdicts if one.kind == kind]
        change = f"{statistics.median(one.change for one in mine):+.1%}" if mine else "-"
        worse, failed = sum(one.word == noise.WORSE for one in mine), sum(one.code == 1 for one in mine)
        yield f"| {title} | {len(mine)} | {worse} | {failed} | {change} |"
    yield ""
    for metric in JUDGED:
        measured = noise.measure([entry.values(metric) for one, entry in entries if one.kind == HONEST])
        shares = (("of a round", measured.within), ("from run to run", measured.between))
        yield f"Noise of {metric}: " + ", ".join(
            f"{quantity(value, 'share')} {what}" for what, value in shares if value
        )
    pairs = pairwise(entry for _, entry in entries)
    parted = {text for old, new in pairs for text in history.differing(old, new)}
    yield from (f"UNLIKE: {text}" for text in sorted(parted))
    yield from (
        f"{one.kind} {one.run}: {one.change:+.1%} {one.word}"
        for one in verdicts
        if (one.kind == SLOW) != bool(one.word)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="what is there is gone on with")
    parser.add_argument("--honest", type=int, default=30, metavar="N", help="honest runs in all")
    parser.add_argument("--slow", type=int, default=10, metavar="N", help="slow runs in all")
    parser.add_argument("--minutes", type=float, default=25.0, metavar="N", help="no run is begun after so many")
    parser.add_argument("--slower", type=float, default=8.0, metavar="PERCENT")
    parser.add_argument("--model", default="bert", help="a suite of suites/")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="measured in each round")
    arguments = parser.parse_args()
    bench = Bench(arguments.folder, arguments.model, arguments.steps, arguments.slower / 100)
    bench.tidy()
    end = time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < end and (kind := bench.next(arguments.honest, arguments.slow)):
        done = bench.run(kind)
        print(f"{done.kind} {done.run}: exit code {done.code}, {done.seconds:.0f} s", flush=True)
    print("\n" + "\n".join(told(bench)))


if __name__ == "__main__":
    main()
