"""The rounds of a run: each runs once, and rounds that another process left are continued to their end."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from flagperf_driver.node.logs.samples import Samples
from pytest_flagperf import stored
from pytest_flagperf.engines import Engine
from pytest_flagperf.plan import Plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.progress import note
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.runtime import Interpreter
from pytest_flagperf.selection import Selected
from pytest_flagperf.stored import FormatError, WriteError, layout, make_folder
from pytest_flagperf.stored.round_dir import RoundDir, cause_of_interrupt, has_readable_record, planned_rounds

from . import replay
from .directory import RunDirectory
from .records import Records
from .restarts import Restarts, run_on_available, why

_FETCHED = 8  # hosts whose figures are wrong

with suppress(ImportError):  # Windows imports this module for its names, but runs no rounds
    import fcntl


class Rounds:
    """The rounds of a run; ``measured`` are the outcomes of this process."""

    def __init__(
        self,
        plan_of: Callable[[Selected], Plan],
        engine: Engine,
        directory: RunDirectory,
        records: Records,
        restarts: Restarts,
        source_of: Callable[[Selected], Selected | None] = lambda _: None,
    ) -> None:
        self.measured: dict[tuple[Selected, int], Outcome] = {}
        self.not_recorded: dict[tuple[Selected, int], WriteError] = {}
        self._plan_of = plan_of
        self._engine = engine
        self._directory = directory
        self._records = records
        self._restarts = restarts
        self._source_of = source_of

    def outcome(self, selected: Selected, number: int) -> Outcome:
        """Return the outcome of a round, and run the round first if needed; WriteError if it could not be recorded."""
        key = selected, number
        if key in self.not_recorded:
            raise self.not_recorded[key]
        if key not in self.measured:
            try:
                self.measured[key] = self._outcome(selected, number)
            except WriteError as error:
                self.not_recorded[key] = error
                raise
        return self.measured[key]

    def _outcome(self, selected: Selected, number: int) -> Outcome:
        if (source := self._source_of(selected)) is not None:
            self.outcome(source, 1)
        plan = self._plan_of(selected)
        self._directory.reserve()
        folder = self.folder(selected, number)
        with _locked(folder.parent):
            # Another worker may have run the round if the tests of a case are spread over workers.
            done = RoundDir(folder).has_outcome
            return store.read_round(folder) if done else self.run(plan, number, folder)

    def ended(self, selected: Selected) -> list[Outcome]:
        """Return the outcomes of the rounds that have ended, of this process or of another one."""
        folders = [self.folder(selected, number) for number in selected.rounds]
        return [store.read_round(folder) for folder in folders if RoundDir(folder).has_outcome]

    def folder(self, selected: Selected, number: int) -> Path:
        """Return the directory of a round."""
        return self._directory.path / selected.case.folder / layout.round_folder(number)

    def samples(self, selected: Selected, number: int) -> Mapping[str, Samples]:
        """Return the samples of each host during a round."""
        return monitors.read(self.folder(selected, number))

    def interpreter(self, selected: Selected) -> Interpreter:
        """Return the Python of the case's framework, prepared on the first hosts that the case may use."""
        return self._engine.interpreter(self._plan_of(selected))

    def run(self, plan: Plan, number: int, folder: Path) -> Outcome:
        """Run a plan in a folder, or continue the round that still runs there; store the outcome.

        A training that ends early is started again as --restarts allows; if it ends well, segments of it are repeated
        if the plan has a replay. If a training that another process left cannot be repeated, the round runs again.
        """
        with replay.with_states(plan, self._engine, number, folder) as placed:
            while True:
                left = RoundDir(folder).has_record
                outcome = self._run_to_end(placed, number, folder)
                if replay.missing(outcome):
                    replay.repeat(self._engine, placed, number, folder)
                    outcome = store.measure_round(folder)
                if not left or not (problem := replay.missing(outcome)):
                    break
                note("line", text=f"{plan.case} round {number}: runs again: {problem}")
                RoundDir(folder).move_aside()
        for fault in outcome.struck:
            note("line", text=f"{plan.case} round {number}: drill: {fault.sentence}")
        return outcome

    def _run_to_end(self, plan: Plan, number: int, folder: Path) -> Outcome:
        """Start a plan, and again while --restarts allows."""
        plans, wait_s = [plan], None
        with ExitStack() as after_the_last:
            for done in itertools.count():
                try:
                    outcome = self._run_once(plans, wait_s, number, folder, after_the_last)
                except BaseException as error:
                    begun = RoundDir(folder).is_planned
                    if done:
                        # Too few hosts are left, or the user pressed Ctrl-C: the last start is the round's result.
                        RoundDir(folder).take_back()
                    if not done or begun or not isinstance(error, Problems):
                        raise
                    note("line", text=f"{plan.case} round {number}: not started again: {why(plan, error)}")
                    break
                if outcome.ended_well or not (plans := self._restarts.set_aside(plan, number, folder, done)):
                    break
                # A training that already continued on fewer hosts does not wait for the others again.
                wait_s = self._restarts.wait_s if outcome.nnodes == plan.case.nnodes else 0.0
        return outcome

    def _run_once(
        self, plans: Sequence[Plan], wait_s: float | None, number: int, folder: Path, after_the_last: ExitStack
    ) -> Outcome:
        """Run a start; ``plans``: the one with most hosts first, as in ``run_on_available``."""

        def run(plan: Plan, left_s: float | None) -> Callable[[], None] | None:
            return self._engine.run(plan, number, folder, left_s)

        def begun() -> bool:
            return RoundDir(folder).is_planned

        note("round", case=str(plans[0].case), folder=f"{folder.parent.name}/{folder.name}")
        try:
            if not self._continued(folder):
                with suppress(FormatError):  # what the controller of a parallel run excluded, if readable
                    self._engine.leave_out(stored.read(self._directory.path / layout.LEFT_OUT))
                if give_back := run_on_available(plans, wait_s, run, begun):
                    after_the_last.callback(give_back)
        except BaseException as error:
            _note_end(folder, error)
            if RoundDir(folder).is_planned:
                with suppress(WriteError):
                    store.measure_round(folder)
            raise
        _note_end(folder)
        outcome = store.measure_round(folder)
        failed = dict.fromkeys(failure.host for failure in outcome.failures if failure.host)
        if outcome.ended_well and (hosts := [*failed][:_FETCHED]):
            for line in self._engine.fetch_late_logs([folder], hosts):
                note("line", text=line)
        return outcome

    def _continued(self, folder: Path) -> bool:
        """Return True if the folder has a round, left by a dead controller, that could be continued."""
        round_dir = RoundDir(folder)
        if not round_dir.is_planned:
            return False
        if has_readable_record(round_dir) or self._engine.resume(folder):
            return True
        round_dir.move_aside()
        return False

    # -- at the end of the run ------------------------------------------------------------------------------------

    def end_orphaned_rounds(self, chosen: Iterable[Selected]) -> None:
        """End the rounds of killed workers; their ranks would otherwise run until their lease expires."""
        orphaned = False
        for round_dir in planned_rounds(self._directory.path):
            if layout.is_failed(round_dir.path.name) or round_dir.has_record:
                continue
            with self._records.collecting_write_errors():
                self._engine.resume(round_dir.path, "the pytest-xdist worker that ran this round died")
            self._measure_again(round_dir.path)
            orphaned = True
        for selected in chosen if orphaned else ():
            for number in (one for one in selected.rounds if RoundDir(self.folder(selected, one)).is_planned):
                with replay.with_states(self._plan_of(selected), self._engine, number, self.folder(selected, number)):
                    pass  # what they left is removed

    def fetch_late_logs(self) -> list[str]:
        """Fetch logs that were not available at the end of their round; return a line for each host."""
        folders = [round_dir.path for round_dir in planned_rounds(self._directory.path) if round_dir.owes_logs]
        lines = self._engine.fetch_late_logs(folders) if folders else []
        # The figures of a round are those of all its tries.
        tries = {path for folder in folders for path in (folder, folder.with_name(layout.last_try(folder.name)))}
        for folder in sorted(tries):
            if RoundDir(folder).is_planned:
                self._measure_again(folder)
        return lines

    def _measure_again(self, folder: Path) -> None:
        with self._records.collecting_write_errors():
            store.measure_round(folder)


def _note_end(folder: Path, error: BaseException | None = None) -> None:
    """Note the state in which a round ended, and a sentence on its problem; empty without a problem."""
    problem = "" if error is None else f"{error}" or cause_of_interrupt(error)
    state = "failed" if error is None or isinstance(error, Exception) else "interrupted"
    try:
        record = RoundDir(folder).read_record()
    except FormatError:
        note("round_end", state=state, sentence=problem or "no record")
    else:
        note("round_end", state=record.state, sentence=record.fault.sentence if record.fault else problem)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder against the other workers of a run; the lock ends with its process."""
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
