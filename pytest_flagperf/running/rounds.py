"""The rounds of a run: each runs once, for whoever asks first, and what another process left is taken to its end."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_flagperf import stored
from pytest_flagperf.catalog import Vendor
from pytest_flagperf.engines import Engine
from pytest_flagperf.plan import Plan
from pytest_flagperf.report.terminal.live import silent
from pytest_flagperf.results import store
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.logs.samples import Samples
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.runtime import Interpreter
from pytest_flagperf.selection import Selected
from pytest_flagperf.stored import FormatError, WriteError, layout, make_folder
from pytest_flagperf.stored.round import RoundDir, has_readable_record, planned_rounds

from .directory import RunDirectory
from .plans import Plans
from .records import Records


class Rounds:
    """``watch`` shows how the rounds go on; ``measured`` are the outcomes of this process."""

    def __init__(self, plans: Plans, engine: Engine, directory: RunDirectory, records: Records) -> None:
        self.watch = silent()
        self.measured: dict[tuple[Selected, int], Outcome] = {}
        self.not_recorded: dict[tuple[Selected, int], WriteError] = {}
        self._plans = plans
        self._engine = engine
        self._directory = directory
        self._records = records

    def outcome(self, one: Selected, number: int) -> Outcome:
        """One round's outcome; WriteError, for every test that asks for it, if the round could not be recorded."""
        key = one, number
        if key in self.not_recorded:
            raise self.not_recorded[key]
        if key not in self.measured:
            try:
                self.measured[key] = self._outcome(one, number)
            except WriteError as error:
                self.not_recorded[key] = error
                raise
        return self.measured[key]

    def _outcome(self, one: Selected, number: int) -> Outcome:
        plan = self._plans.plan(one)
        self._directory.reserve()
        folder = self.folder(one, number)
        with _alone(folder.parent):
            # A user may spread tests of one case over workers: the round is another's then.
            done = RoundDir(folder).has_outcome
            return store.read_round(folder) if done else self.run(plan, one.vendor, number, folder)

    def folder(self, one: Selected, number: int) -> Path:
        """The directory of a round of a case."""
        return self._directory.path / one.case.folder / layout.round_folder(number)

    def samples(self, one: Selected, number: int) -> Mapping[str, Samples]:
        """What was sampled on each host while a round ran."""
        return monitors.read(self.folder(one, number))

    def interpreter(self, one: Selected) -> Interpreter:
        """The Python of the case's framework, ready on the first hosts that it may run on."""
        return self._engine.interpreter(self._plans.plan(one), one.vendor, self.watch)

    def run(self, plan: Plan, vendor: Vendor, number: int, folder: Path) -> Outcome:
        """Run a plan once in a folder, or take up what still runs there; its outcome is stored."""
        try:
            if not self._gone_on(folder):
                self._leave_out()
                self._engine.run(plan, vendor, number, folder, self.watch)
        except BaseException:
            if RoundDir(folder).is_planned:
                with suppress(WriteError):
                    store.save_outcome(folder, store.measured(folder))
            raise
        outcome = store.measured(folder)
        store.save_outcome(folder, outcome)
        return outcome

    def _leave_out(self) -> None:
        """Use no host or device that the controller of a parallel run left out; a broken record leaves out none."""
        with suppress(FormatError):
            self._engine.leave_out(stored.read(self._directory.path / layout.LEFT_OUT))

    def _gone_on(self, folder: Path) -> bool:
        """Whether the round was running already, left by a controller that died, and could be taken to its end."""
        left = RoundDir(folder)
        if not left.is_planned:
            return False
        if has_readable_record(left) or self._engine.resume(folder, self.watch):
            return True
        left.move_aside()
        return False

    # -- at the run's end ------------------------------------------------------------------------------------

    def end_what_workers_left(self) -> None:
        """The ranks of a worker that was killed would go on for their lease, for nobody."""
        for left in planned_rounds(self._directory.path):
            if layout.is_failed(left.path.name) or left.has_record:
                continue
            with self._records.noting_refusals():
                self._engine.resume(left.path, self.watch, "the worker of pytest-xdist that ran this round died")
            self._measure_again(left.path)

    def fetch_late_logs(self) -> list[str]:
        """Logs that a host could not hand out at its round's end may be had now; a sentence for each."""
        lacking = [one.path for one in planned_rounds(self._directory.path) if one.owes_logs]
        sentences = self._engine.fetch_late_logs(lacking) if lacking else []
        for folder in lacking:
            self._measure_again(folder)
        return sentences

    def _measure_again(self, folder: Path) -> None:
        with self._records.noting_refusals():
            store.save_outcome(folder, store.measured(folder))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Among the workers of a run, the only one in a folder; the lock is free when its holder is gone."""
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
