"""The lab's second engine: rounds under agents on hosts that one program of the site lends and another one takes back.

The table [cluster] says how the hosts are reached: by its ``reach``, else by SSH with its ``user`` and ``key``.
"""

import subprocess
import time
from dataclasses import dataclass, replace

from pytest_flagperf.engines.agents.allocation import Allocation
from pytest_flagperf.hosts import HostError
from pytest_flagperf.hosts.cluster import read_cluster
from pytest_flagperf.hosts.host_pool import HostPool, cluster_pool, run_on_each
from pytest_flagperf.plan import Plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.progress import note
from pytest_flagperf.settings import Settings, SiteTable
from pytest_flagperf.typed import read_table

NONE_FREE = 75  # the exit code of ``lend`` if too few hosts are free at the moment
POLL_S, ANSWER_S = 2.0, 60.0


@dataclass(frozen=True)
class LendConfig:
    """The table [engines.lend]: programs of the site, each with its first arguments, separated by spaces."""

    lend: str = "lend"  # it gets a number of hosts and prints their names
    take_back: str = "return"  # it gets the name of a host


class LentHosts(Allocation):
    """The hosts of one case at a time, lent for all of its rounds and starts.

    An unfit or lost host stays lent until the end of the run, so that the site does not lend it to this run again.
    """

    def __init__(self, settings: Settings, _: object, table: SiteTable) -> None:
        values, wrong = read_table(LendConfig, table.table, "engines.lend")
        wrong += [f"engines.lend.{key}: expected a program, got no word" for key in values if not values[key].split()]
        if wrong:
            raise Problems([f"{table.file}: {problem}" for problem in wrong])
        self._site = LendConfig(**values)
        cluster = settings.cluster_table or SiteTable({}, table.file)
        self._cluster = read_cluster(cluster.table, cluster.file)
        self._case = ""
        self._lent: list[str] = []
        self._unusable: set[str] = set()

    def header(self) -> list[str]:
        return [f"  hosts: lent by {self._site.lend!r} for each case"]

    def held_by(self) -> str:
        return f"lent by {self._site.lend!r}" if self._lent else ""

    def obtain(self, plan: Plan, wait_s: float | None = None) -> bool:
        """Keep the hosts that the case has and that answer, and replace the others."""
        if self._case != str(plan.case):
            self.release()
        self._case = str(plan.case)
        for host, answer in run_on_each(self.pool.usable, lambda host: host.reconnect()).items():
            if isinstance(answer, HostError):
                self.pool.exclude(host, str(answer))
        missing = plan.shape.nnodes - len(self.pool.usable)
        if missing <= 0:
            return False
        self._lend(missing, wait_s)
        self._update_pool()
        return True

    def release(self) -> None:
        lent, self._lent = self._lent, []
        self._update_pool()
        self._take_back([name for name in lent if name not in self._unusable])

    def close(self) -> None:
        self.release()
        self._take_back(sorted(self._unusable))

    def _update_pool(self) -> None:
        """Use the case's hosts from now on; no connection is made before one is needed."""
        self._unusable.update(self.pool.excluded)
        self.pool.close()
        self._pool = HostPool(())
        if names := tuple(name for name in self._lent if name not in self._unusable):
            self._pool = cluster_pool(replace(self._cluster, hosts=names, source=self._site.lend))

    def _lend(self, count: int, wait_s: float | None) -> None:
        """Lend hosts for the case; another start waits for free ones for a limited time."""
        command, began = f"{self._site.lend} {count}", time.monotonic()
        while (done := run(command)).returncode == NONE_FREE and (wait_s is None or time.monotonic() < began + wait_s):
            note("activity", text=f"{self._case} waits for {count} hosts: {done.stderr.strip()}")
            time.sleep(POLL_S)
        names = done.stdout.split()
        self._lent += names
        if done.returncode or len(names) < count:
            problem = f"{len(names)} names and exit code {done.returncode}: {done.stderr.strip()}"
            raise HostError(f"{command}: expected {count} names, got {problem}")
        note("line", text=f"{self._case} is lent {', '.join(names)}")

    def _take_back(self, names: list[str]) -> None:
        """Return hosts to the site; print a line for a host that it does not take back."""
        for name in names:
            done = run(f"{self._site.take_back} {name}")
            if done.returncode:
                problem = f"exit code {done.returncode}: {done.stderr.strip()}"
                note("line", text=f"{self._site.take_back} {name}: {problem}; return the host by hand")


def run(command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the site; one that cannot start or takes too long has the exit code 127, as in a shell."""
    try:
        return subprocess.run(command.split(), capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))
