"""Runs of a toy tree in the cloud, in this process."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modelarts_tests import service
from modelarts_tests.conftest import table
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.running.run import Run
from pytest_flagperf.stored.round_dir import RoundDir, RoundFault, RoundRecord
from tests.helpers.waiting import until
from tests.plugin.conftest import Toy


class CloudRun:
    """One run in this process."""

    def __init__(self, toy: Toy, double: service.ModelArts, case: str, *set_: str, **more: Any) -> None:
        options = more.pop("options", {})
        site = {name: more.pop(name) for name in ("lease-time", "vendor") if name in more}
        lines = [f"{name} = {json.dumps(value)}" for name, value in site.items()]
        (toy.root / "flagperf.toml").write_text("\n".join([*lines, table(double, **more)]))
        self.double = double
        arguments = {"engine": "modelarts", "case": [case], "set": list(set_) or None, **options}
        run = Run.open(toy.root, toy.root, arguments, None)
        assert run is not None
        self.run = run
        self.selected = run.selection.cases[0]

    def prepare(self) -> list[str]:
        self.run.check([self.selected])
        return self.run.prepare([self.selected])

    def round(self, number: int = 1) -> Outcome:
        return self.run.rounds.outcome(self.selected, number)

    @property
    def record(self) -> RoundRecord:
        return RoundDir(self.folder()).read_record()

    def failed(self) -> RoundFault:
        assert not self.round().ok
        fault = self.record.fault
        assert fault is not None
        return fault

    def folder(self, number: int = 1) -> Path:
        return self.run.rounds.folder(self.selected, number)


def when(condition: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
    def wait() -> None:
        until(condition, "the condition")
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread
