"""Engines: how a plan becomes the directory of a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytest_flagperf.case import Case
    from pytest_flagperf.catalog import Vendor
    from pytest_flagperf.hosts import Host
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.report.terminal.live import Live
    from pytest_flagperf.runtime import Interpreter

    from .agents.preflight import Finding


class Engine(Protocol):
    """Runs the rounds of a run somewhere; connects when it must, not before."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts of the run, in the order in which cases take them."""

    @property
    def is_cluster(self) -> bool:
        """Whether the hosts are other machines than this one."""

    @property
    def left_out(self) -> Mapping[str, Any]:
        """What the other processes of the same run must know, as JSON; ``leave_out`` takes it."""

    def leave_out(self, told: Mapping[str, Any]) -> None:
        """Use no host and no device that another process of the same run left out."""

    def header(self) -> list[str]:
        """Lines about the hosts, for the top of the terminal's output."""

    # -- before anything starts ------------------------------------------------------------------------------

    def check(self, plan: Plan, vendor: Vendor) -> None:
        """Raise Problems if the case cannot run as its vendor and the options say; no host is asked."""

    def notes(self, case: Case, vendor: Vendor, runtime: str) -> list[str]:
        """Return what a user may not expect of a case, a sentence each; no host is asked."""

    def describe(self, plan: Plan, vendor: Vendor, convergence: str = "", duration: Iterable[str] = ()) -> str:
        """Return what ``--plan`` prints of a case; no host is asked."""

    def inspect(self, asked: Sequence[tuple[Plan, Vendor]]) -> list[Finding]:
        """Look at every host, for all cases at once."""

    def prepare(self, asked: Sequence[tuple[Plan, Vendor]]) -> list[str]:
        """Inspect, and leave unfit hosts and devices out; sentences about them. Problems where too few are left."""

    def interpreter(self, plan: Plan, vendor: Vendor, watch: Live) -> Interpreter:
        """Return the Python of the case's ranks, ready on the first hosts that the case may run on."""

    # -- rounds ----------------------------------------------------------------------------------------------

    def run(self, plan: Plan, vendor: Vendor, number: int, directory: Path, watch: Live) -> None:
        """Run one round to its end; its directory says how it ended. Problems where it could not start."""

    def resume(self, directory: Path, watch: Live, end_because: str | None = None) -> bool:
        """Take a round that another process left running to its end, or end it at once for a reason.

        False where it does not run any more; logs of it that are still elsewhere are fetched then.
        """

    def fetch_late_logs(self, directories: Sequence[Path]) -> list[str]:
        """Try again for logs that could not be fetched at their rounds' ends; a sentence for each."""

    def close(self) -> None:
        """Close all connections."""
