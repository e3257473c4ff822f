"""The lab's engine: it runs the ranks of cases for one host as plain processes of this machine."""

import os
import secrets
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from flagperf_driver.layout import CASE, MILESTONE_TIMES, rank_log
from flagperf_driver.node.agent import milestones
from flagperf_driver.node.agent.rank_health import LogTail
from flagperf_driver.node.agent.timer import now_ms
from flagperf_driver.ports import free_port
from flagperf_driver.rank_process import RankProcess
from pytest_flagperf import stored
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.engines import Engine
from pytest_flagperf.engines.agents.environments import Environments
from pytest_flagperf.hooks import EngineFactory, hookimpl
from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.deploy import stage
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.plan import PlacedHost, Placement, Plan, describe, rank_processes
from pytest_flagperf.problems import Problems
from pytest_flagperf.runtime import Interpreter
from pytest_flagperf.settings import Settings, SiteTable
from pytest_flagperf.stored.layout import host_folder
from pytest_flagperf.stored.round_dir import HostEnd, RankEnd, RoundDir, RoundFault, RoundRecord

from .lent_hosts import LentHosts


@hookimpl
def flagperf_engines() -> list[EngineFactory]:
    return [EngineFactory("processes", open_engine), EngineFactory("lend", LentHosts)]


def open_engine(settings: Settings, catalog: Catalog, table: SiteTable) -> Engine:
    timeout_s = table.table.get("timeout_s", 3600.0)
    unknown = sorted(table.table.keys() - {"timeout_s"})
    if unknown:
        raise Problems([f"{table.file}: [engines.processes]: unknown key {unknown[0]!r}; expected timeout_s"])
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or timeout_s <= 0:
        raise Problems([f"{table.file}: [engines.processes]: timeout_s = {timeout_s!r}: expected seconds above 0"])
    return ProcessesEngine(catalog, Environments(settings, catalog), timeout_s)


class ProcessesEngine(Engine):
    hosts: tuple[Host, ...] = (LocalHost(),)

    def __init__(self, catalog: Catalog, environments: Environments, timeout_s: float) -> None:
        self._catalog = catalog
        self._environments = environments
        self._timeout_s = timeout_s

    def header(self) -> list[str]:
        return [f"  engine: processes of this machine, for at most {self._timeout_s:g} s per round"]

    def describe(self, plan: Plan, convergence: str = "", duration: Iterable[str] = ()) -> str:
        vendor, request = self._catalog.vendors[plan.vendor], self._environments.request_of(plan)
        return describe(plan, vendor, "none", request, convergence, duration, self.hosts)

    def interpreter(self, plan: Plan) -> Interpreter:
        return self._environments.interpreters(plan, self.hosts)[self.hosts[0].name]

    def run(self, plan: Plan, number: int, directory: Path, wait_s: float | None) -> None:
        interpreter, host = self.interpreter(plan), self.hosts[0]
        logs = directory.resolve() / host_folder(host.name, 0)
        logs.mkdir(parents=True)
        code, devices = stage(host, self._environments.code(plan)), tuple(range(plan.case.nproc))
        placed = PlacedHost(
            host.name, 0, host.address, devices, log_dir=str(logs), code_root=code, python=interpreter.python,
            env=interpreter.env, path=interpreter.path,
        )  # fmt: skip
        case = {**plan.case_json(number, code), "token": secrets.token_hex(8)}
        stored.write(logs / CASE, case)
        facts = {name: case[name] for name in ("round", "seed", "token")}
        RoundDir(directory).write_inputs({**plan.to_json(), **facts, "hosts": [placed.to_json()]}, case)
        record = self._run_ranks(plan, Placement((placed,), free_port(), 1), logs)
        RoundDir(directory).write_record(record)

    def _run_ranks(self, plan: Plan, placement: Placement, logs: Path) -> RoundRecord:
        """Run the ranks until all have ended, one has failed, or the time is over; leave no process."""
        started_ms, deadline = now_ms(), time.monotonic() + self._timeout_s
        (processes,) = rank_processes(plan, placement)
        ranks: list[Rank] = []
        try:
            ranks += (Rank(process, logs) for process in processes)
            while any(rank.code is None for rank in ranks) and time.monotonic() < deadline:
                for rank in ranks:
                    rank.follow()
                if any(rank.code for rank in ranks):
                    break
                time.sleep(0.02)
            late = [rank.number for rank in ranks if rank.code is None]
        finally:
            for rank in ranks:
                rank.end()
        times = {str(rank.number): rank.milestones.to_json() for rank in ranks}
        stored.write(logs / MILESTONE_TIMES, {"schema": milestones.SCHEMA, "ranks": times})
        name, failed = placement.hosts[0].name, [rank for rank in ranks if rank.code and rank.number not in late]
        fault = None
        if failed:
            fault = RoundFault("exit", name, failed[0].number, f"rank {failed[0].number} exited with {failed[0].code}")
        elif late:
            fault = RoundFault("timeout", name, late[0], f"rank {late[0]} did not end within {self._timeout_s:g} s")
        host = HostEnd(0, name, tuple(RankEnd(rank.number, rank.code) for rank in ranks))
        return RoundRecord("failed" if fault else "finished", fault, started_ms, now_ms(), hosts=(host,))


class Rank:
    """A running rank, and the times of the milestones in its log, without which its log does not count."""

    def __init__(self, process: RankProcess, logs: Path) -> None:
        self.number = process.rank
        self.milestones = milestones.Milestones()
        log = logs / rank_log(process.rank)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                process.argv, env={**os.environ, **process.env}, cwd=logs, stdout=output, stderr=subprocess.STDOUT
            )
        self._log = LogTail(log, milestones.MILESTONES)

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def follow(self, to_the_end: bool = False) -> None:
        begin = milestones.Moment.now()
        for record in self._log.new(to_the_end):
            self.milestones.add(record.event, milestones.Moment.now())
        if self._log.at_the_end:
            self.milestones.read_completely(begin)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.follow(to_the_end=True)
