"""One job in the cloud: submitted when the orders for all its instances are complete, then followed to its end."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flagperf_driver.node import device_lease
from flagperf_driver.perflog import number
from pytest_flagperf import stored
from pytest_flagperf.hosts import HostError, HostLost, Message
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.progress import note

from .config import ModelArtsConfig
from .instances import InstanceChannel
from .job import layout, orders
from .jobs import Jobs, TrainingJob, TrainingJobRequest, TrainingJobState, local_log
from .obs import Obs
from .obs_path import ObsFolder
from .package import code_files

with suppress(ImportError):  # Windows imports this module for its names, but runs no rounds
    import fcntl

_log = logging.getLogger("flagperf.modelarts")
_LOGS, _FIGURES = "log", "result"
_FIGURE = re.compile(r"(\d+/)?throughput_\d+\.json|accuracy(_\d+)?\.json|" + re.escape(layout.RANK_SIZE))
_LONGEST_FIGURE = 100  # bytes
_LOST_AFTER = 2  # failed attempts in a row
_LEAVE_S = 60.0  # a job with a failed instance may end by itself and publish its logs
OUTPUT_S = 30.0
"""Seconds that the logs of an ended job may need to appear in OBS."""
_LOCK_POLL_S = 0.25

Translate = Callable[[Message], Message]


@dataclass(frozen=True)
class Cloud:
    """The account: its settings, its storage and its jobs."""

    config: ModelArtsConfig
    obs: Obs
    jobs: Jobs


@dataclass
class Submission:
    """What a job needs before it is submitted."""

    code: Code
    nproc: int
    translate: Mapping[int, Translate]  # by instance: the order with placeholders
    hours: int | None
    on_submitted: Callable[[TrainingJob], None]
    orders: dict[int, Message] = field(default_factory=dict)


class CloudJob:
    """A job and the channels to its instances; one thread submits and follows it."""

    def __init__(self, cloud: Cloud, name: str, instances: Sequence[str], *, together: bool) -> None:
        self.obs = cloud.obs
        self.output = cloud.config.output.folder(name)
        self.lost: str | None = None  # why the cloud does not answer at the moment
        self.channels = [InstanceChannel(self, number, host) for number, host in enumerate(instances)]
        self.name = self._name = name
        self._cloud = cloud
        self._hosts = list(instances)
        self._together = together
        self._job: TrainingJob | None = None
        self._submission: Submission | None = None
        self._phase = ""
        self._failures = 0
        self._stop_at: float | None = None
        self._stop_votes: set[int] = set()
        self._stopped = False
        self._open = len(self.channels)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._code_lock: int | None = None
        self._thread = threading.Thread(target=self._work, name=f"job {name}", daemon=True)

    def submit_with(self, submission: Submission) -> None:
        """Submit the job as soon as the orders for all instances have arrived."""
        self._submission = submission

    def follow(self, job: TrainingJob) -> None:
        """Follow a job that was submitted before."""
        self._job = job
        self._thread.start()

    @property
    def is_followed(self) -> bool:
        """Return True while the job is submitted and polled."""
        return self._thread.is_alive()

    @property
    def is_finished(self) -> bool:
        """Return True if the end of the job is known."""
        return all(channel.finished for channel in self.channels)

    # -- for the channels ----------------------------------------------------------------------------------

    def order(self, instance: int, message: Message) -> None:
        """Take the order for an instance; the last one starts the submission."""
        assert self._submission is not None
        with self._lock:
            self._submission.orders[instance] = message
            complete = len(self._submission.orders) == len(self.channels)
        if complete:
            self._thread.start()

    def request_stop(self, instance: int, reason: str) -> None:
        """End the job: at once, or after a time in which an instance that failed can publish its logs.

        Instances that train alone end only together, when no round needs them.
        """
        with self._lock:
            self._stop_votes.add(instance)
            if self._together or "interrupted" in reason or len(self._stop_votes) == len(self.channels):
                faulty = any(channel.faulty for channel in self.channels)
                self._stop_at = self._stop_at or time.monotonic() + (_LEAVE_S if faulty else 0.0)
        self._wake.set()

    def leave(self) -> None:
        """Stop following the job when no channel is open."""
        with self._lock:
            self._open -= 1
            if self._open > 0:
                return
            self._closing = True
        self._wake.set()

    def abort(self, sentence: str) -> None:
        """End all rounds of a job that cannot be submitted."""
        self._finish(sentence)

    def reopened(self, instance: int) -> InstanceChannel:
        """Return the channel of an instance; a closed channel is opened again, for logs that are fetched late."""
        channel = self.channels[instance]
        if channel.reopen():
            with self._lock:
                self._open += 1
        return channel

    # -- the thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._follow(self._job or self._submit())
        except HostError as error:
            self._give_up(str(error))
        except Exception as error:
            _log.exception("job %s", self._name)
            self._give_up(f"job {self._name}: {type(error).__name__}: {error}")
        finally:
            self._release_code()

    def _submit(self) -> TrainingJob:
        """Upload code and orders, and submit the job."""
        assert self._submission is not None
        submission, config = self._submission, self._cloud.config
        files = code_files(config, submission.code)
        self._hold_code()
        uploaded, removed = self.obs.synchronize(config.code, files, layout.JOB_ORDERS)
        stale = f", removed {removed} old files" if removed else ""
        note("line", text=f"job {self._name}: uploaded {uploaded} of {len(files)} files to {config.code.url}{stale}")
        entries = [
            {
                "name": host,
                "nproc": submission.nproc,
                "start": submission.translate[number](submission.orders[number]),
            }
            for number, host in enumerate(self._hosts)
        ]
        checksums = {name: orders.checksum(body) for name, body in files.items() if isinstance(body, bytes)}
        body: dict[str, Any] = {
            "schema": orders.SCHEMA,
            "together": self._together,
            "instances": entries,
            "files": checksums,
        }
        self.obs.write(config.code, self._orders_file, json.dumps(body).encode())
        job = self._cloud.jobs.submit(
            TrainingJobRequest(
                name=self._name,
                code=config.code,
                boot_file=layout.BOOT,
                output=self.output,
                log=self.output.folder(_LOGS),
                instances=len(self.channels),
                parameters={"orders": self._orders_file},
                hours=submission.hours,
            )
        )
        self._job = job
        note("line", text=f"job {self._name} is submitted: id {job.id}")
        submission.on_submitted(job)
        return job

    @property
    def _orders_file(self) -> str:
        return f"{layout.JOB_ORDERS}{self._name}.json"

    def _follow(self, job: TrainingJob) -> None:
        """Poll the job and its logs until it has ended, or every channel is closed."""
        while not self._closing:
            self._wake.wait(self._cloud.config.poll)
            self._wake.clear()
            try:
                state = self._cloud.jobs.state(job)
                self._synchronize(job)
                if not state.ended:
                    self._stop_if_due(job, state)
            except HostLost as error:
                self._lose(error)
                continue
            self._failures, self.lost = 0, None
            if state.phase != self._phase:
                self._phase = state.phase
                note("line", text=f"job {self._name}: {state.phase}")
            if state.ended:
                self._read_output(job)
                reason = f": {state.reason}" if state.reason else ""
                self._finish(f"job {self._name} (id {job.id}) ended: {state.phase}{reason}")
                return
        if self._phase and not any(channel.finished for channel in self.channels):
            note("line", text=f"job {self._name} may still run: flagperf-modelarts stop ends it")

    def _lose(self, error: HostLost) -> None:
        self._failures += 1
        if self._failures >= _LOST_AFTER and self.lost is None:
            self.lost = str(error)
            for channel in self.channels:
                channel.lose(HostLost(self.lost))

    def _synchronize(self, job: TrainingJob) -> None:
        folder = self.output.folder(_LOGS)
        for channel in self.channels:
            channel.synchronize(folder, self._cloud.jobs.log_name(job, channel.instance))
        if self._code_lock is not None and all(channel.has_started for channel in self.channels):
            self._remove_orders()
            self._release_code()

    def _stop_if_due(self, job: TrainingJob, state: TrainingJobState) -> None:
        if self._stopped or self._stop_at is None or time.monotonic() < self._stop_at or not state.stoppable:
            return
        accepted = self._cloud.jobs.stop(job)
        self._stopped = True
        note("line", text=f"job {self._name}: stop requested: {'accepted' if accepted else 'refused'}")

    def _read_output(self, job: TrainingJob) -> None:
        """Wait for the messages and the packed logs of the instances, which may appear after the end of the job."""
        started = [channel for channel in self.channels if channel.has_started]
        deadline = time.monotonic() + OUTPUT_S
        while True:
            try:
                self._synchronize(job)
                missing = [channel for channel in self.channels if not channel.read_output()]
                self.lost = None
                if not missing or not (started or any(channel.has_started for channel in missing)):
                    return
            except HostLost as error:
                self._lose(error)
                deadline = time.monotonic() + OUTPUT_S
            if self._closing or time.monotonic() > deadline:
                return
            time.sleep(min(1.0, self._cloud.config.poll))

    def _give_up(self, sentence: str) -> None:
        """Stop a job that cannot be followed any more, and report the reason to all channels."""
        if self._job is not None and not self._stopped:
            try:
                self._cloud.jobs.stop(self._job)
                note("line", text=f"job {self._name}: stop requested")
            except HostError:
                note("line", text=f"job {self._name} may still run: flagperf-modelarts stop ends it")
        self._finish(sentence)

    def _finish(self, sentence: str) -> None:
        """Report the end to all channels, and remove the orders of a job that has not started."""
        for channel in self.channels:
            channel.finish(sentence)
        self._remove_orders()

    # -- the code folder -----------------------------------------------------------------------------------

    def _hold_code(self) -> None:
        """Wait until no other job of this machine that has not copied the code yet needs the code folder."""
        config, reported = self._cloud.config, False
        key = orders.checksum(config.code.url.encode())[:12]
        self._code_lock = device_lease.open_lock(device_lease.default_directory(), f"modelarts-{key}")
        while True:
            try:
                fcntl.flock(self._code_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._closing or self._stop_at is not None:
                    raise HostError(f"job {self._name} was stopped before it was submitted") from None
            if not reported:
                note(
                    "line",
                    text=f"job {self._name} waits: another job has not copied its code yet from {config.code.url}",
                )
                reported = True
            time.sleep(_LOCK_POLL_S)

    def _remove_orders(self) -> None:
        """Remove the job's orders, only while no other job copies the code folder with them."""
        if self._code_lock is not None:
            with suppress(HostError):
                self.obs.delete(self._cloud.config.code, [self._cloud.config.code.key + self._orders_file])

    def _release_code(self) -> None:
        if self._code_lock is not None:
            os.close(self._code_lock)
            self._code_lock = None


def fetch_figures(cloud: Cloud, output: ObsFolder, directory: Path, server: int | None) -> list[str]:
    """Copy ais-bench's files with one number each into the directory of a round; return a sentence for each bad one.

    ``server`` is the instance of a round that trained alone; None for a training on all instances.
    """
    target, problems = directory / _FIGURES, []
    for found in cloud.obs.objects(output):
        name = found.key.removeprefix(output.key)
        if not _is_figure(name, server) or found.size > _LONGEST_FIGURE:
            continue
        content = cloud.obs.read(output, name)
        if not math.isfinite(number(content.decode("ascii", "replace"))):
            problems.append(f"{output.url}{name} contains {content[:40]!r}; expected a number")
            continue
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with stored.writing(path):
            path.write_bytes(content)
    return problems


def _is_figure(name: str, server: int | None) -> bool:
    """Return True for the name of a figure; of a round that trained alone, only for its own."""
    if server is None:
        return _FIGURE.fullmatch(name) is not None
    return name == layout.accuracy(server) or (name.startswith(f"{server}/") and _FIGURE.fullmatch(name) is not None)


def log_file(directory: Path, job: TrainingJob, config: ModelArtsConfig, instance: int) -> Path:
    """Return the copy of an instance's log in the directory of a round."""
    return directory / _LOGS / local_log(job, config.job_name, instance)
