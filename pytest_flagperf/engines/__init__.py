"""Engines: they run the rounds of a plan and write each round's directory.

A class that derives from ``Engine`` must define ``hosts``, ``describe``, ``interpreter`` and ``run``; the other methods
have defaults, for an engine that contacts no other machine before a round and leaves nothing running after it.
``progress.note`` shows and records what an engine does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytest_flagperf.case import Case
    from pytest_flagperf.catalog import Vendor
    from pytest_flagperf.hosts import Host
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.results import StoredRun
    from pytest_flagperf.runtime import Interpreter


OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """One finding about one host; ``devices`` are unfit devices, ``near`` has the cores near each device."""

    host: str
    kind: str
    level: str
    sentence: str
    remedy: str = ""
    devices: tuple[int, ...] = ()
    near: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def fatal(self) -> bool:
        return self.level == FAIL


class Engine(Protocol):
    """Runs the rounds of a run; connects to hosts only when needed."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts in the order in which cases use them; those of the present case if each case requests its own."""

    @property
    def host_count(self) -> int | None:
        """The number of hosts; None if each case requests as many as it needs."""
        return len(self.hosts)

    def leave_out(self, left_out: Mapping[str, Any] | None = None) -> Mapping[str, Any]:  # noqa: ARG002
        """Exclude the hosts and devices that another process of the run excluded; return all excluded ones, as JSON."""
        return {}

    def header(self) -> list[str]:
        """Lines about the hosts, for the top of the terminal's output."""
        return []

    # -- before anything starts ------------------------------------------------------------------------------

    def check(self, plan: Plan) -> None:  # noqa: ARG002
        """Raise Problems if the case cannot run with its vendor and these options; contact no host."""
        return

    def notes(self, case: Case, vendor: Vendor, runtime: str) -> list[str]:  # noqa: ARG002
        """Return notes on a case that may surprise users, one sentence each; contact no host."""
        return []

    def describe(self, plan: Plan, convergence: str = "", duration: Iterable[str] = ()) -> str:
        """Return the text that ``--plan`` prints for a case; contact no host."""

    def inspect(self, plans: Sequence[Plan]) -> list[Finding]:  # noqa: ARG002
        """Check every host, for all cases at once."""
        return []

    def prepare(self, plans: Sequence[Plan]) -> list[str]:  # noqa: ARG002
        """Check every host and exclude unfit hosts and devices. Return sentences about them.

        Problems if too few hosts are left.
        """
        return []

    def interpreter(self, plan: Plan) -> Interpreter:
        """Return the Python of the case's ranks, ready on the first hosts that the case may run on."""

    # -- rounds ----------------------------------------------------------------------------------------------

    def run(self, plan: Plan, number: int, directory: Path, wait_s: float | None) -> Callable[[], None] | None:
        """Run one round to its end and write its directory. Problems if the round cannot start.

        MissingHosts if only hosts are missing, for which another start waits (``restart-wait``). ``wait_s`` is how long
        it waits for hosts that it requests; None for a first start: without limit.
        Return the function that returns the hosts, if they are kept: for another start of this round (``--restarts``),
        or because they kept logs, which ``fetch_late_logs`` may fetch.
        """

    def resume(self, directory: Path, end_because: str | None = None) -> bool:  # noqa: ARG002
        """Resume a round that another process left running, or end it at once for the reason ``end_because``.

        Return False if the round is not running any more; its logs that are still on other hosts are then fetched.
        """
        return False

    def end_replay(self, plan: Plan, number: int, directory: Path) -> None:  # noqa: ARG002
        """Remove the states of a training and of its starts from their hosts, and return hosts kept for its replay."""
        return

    def fetch_late_logs(self, directories: Sequence[Path], kept_by: Collection[str] = ()) -> list[str]:  # noqa: ARG002
        """Fetch logs that could not be fetched when their rounds ended; return a sentence for each.

        With ``kept_by``, only those that these hosts summed up and kept; the rounds' own files stay as they are.
        """
        return []

    def finish(self, results: StoredRun) -> list[str]:  # noqa: ARG002
        """Write further files of a finished run; return lines for its summary."""
        return []

    def close(self) -> None:
        """Close all connections."""
        return


def is_local(engine: Engine) -> bool:
    """Return True if all rounds of an engine run on this machine."""
    return engine.host_count is not None and all(host.is_local for host in engine.hosts)
