"""Run the agent of this instance: read the orders, fill in what only the instance knows, and publish the logs.

Each message of the agent becomes a line of this process's output, which the cloud copies into the job's log.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, Mapping

from flagperf_driver.node.deployed_code import CODE_ROOT
from flagperf_driver.rank_process import threads_per_rank

from . import figures, layout, orders
from .conversation import AgentFailed, Conversation
from .instance import Instance, InstanceError, this_instance
from .orders import CODE, DATA, LOGS, PYTHON, THREADS, InstanceOrders, JobOrders, OrdersError

PREFIX = "[flagperf] "
"""The beginning of the lines that the controller reads; a number and a message follow."""
SUMMARY = "logs"
"""The type of the last message: the size and the checksum of the packed logs."""


class Transfer:
    """The job's input and output: folders of this instance, or addresses that the image's own library copies."""

    def __init__(self, data_url: str, train_url: str, folder: Path) -> None:
        self._data_url, self._train_url = data_url, train_url
        self.output = folder / "output"
        self.output.mkdir(parents=True, exist_ok=True)
        self._data = folder / "data"

    def data(self) -> str:
        """Return the folder of the training data; copy them first if they are only in OBS."""
        if "://" not in self._data_url:
            return self._data_url
        _copy(self._data_url, str(self._data))
        return str(self._data)

    def publish(self) -> None:
        """Copy the output to its place in OBS, or to the folder that the cloud copies there."""
        if "://" in self._train_url:
            _copy(str(self.output), self._train_url)
            return
        for path in sorted(self.output.rglob("*")):
            target = Path(self._train_url) / path.relative_to(self.output)
            if path.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = target.with_name(f".{target.name}.new")
                shutil.copyfile(str(path), str(temporary))
                temporary.replace(target)


def _copy(source: str, target: str) -> None:
    try:
        import moxing  # type: ignore[import-not-found]  # a part of the images of ModelArts
    except ImportError as error:
        raise OrdersError(f"{source}: the image has no package moxing to copy it; set version = 'v2'") from error
    moxing.file.copy_parallel(source, target)


class Reporter:
    """Writes numbered messages to the job's log and to a file of its output."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._number = 0

    def send(self, message: Mapping[str, Any]) -> None:
        self._number += 1
        line = f"{self._number} {json.dumps(message)}"
        print(f"{PREFIX}{line}", flush=True)
        self._file.write(line + "\n")
        self._file.flush()


def main(code: Path, arguments: list[str]) -> int:
    """Run this instance's part of the job whose code folder is ``code``; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--orders", required=True)
    parser.add_argument("--data_url", default="")
    parser.add_argument("--train_url", required=True)
    given, _ = parser.parse_known_args(arguments)  # the cloud may add options of its own
    try:
        job = orders.read_orders(code / given.orders)
        orders.check_code(code, job.files)
        instance = this_instance(len(job.instances), job.together)
    except (OrdersError, InstanceError) as error:
        return _refuse(str(error))
    folder = Path(tempfile.gettempdir(), f"pytest-flagperf-job-{Path(given.orders).stem}-{instance.number}")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as lock:
        # Some engines of the cloud start the boot file once for each card: the first process runs the agent.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "exit_code"
        if done.exists():
            return int(done.read_text())
        exit_code = _run(job, instance, Transfer(given.data_url, given.train_url, folder), folder)
        done.write_text(str(exit_code))
        return exit_code


def _run(job: JobOrders, instance: Instance, transfer: Transfer, folder: Path) -> int:
    """Run this instance's part of the job and publish its logs, whatever happens; return the exit code."""
    own = job.instances[instance.number]
    failed: list[str] = []
    with (transfer.output / layout.job_messages(instance.number)).open("w", encoding="utf-8") as messages:
        reporter = Reporter(messages)

        def take(message: Mapping[str, Any]) -> None:
            if message["type"] == "fault":
                failed.append(str(message["sentence"]))
            reporter.send(message)

        conversation = None
        try:
            start = _start_order(own, instance, transfer, folder)
            conversation = Conversation(take)
            _follow(conversation, own, start, folder)
            figures.write(transfer.output, folder / own.name, start, instance.number, job.together)
            with (transfer.output / layout.job_archive(instance.number)).open("wb") as archive:
                reporter.send({"type": SUMMARY, **conversation.collect(archive)})
        except (AgentFailed, OrdersError, OSError) as error:
            failed.append(str(error))
            reporter.send({"type": "fault", "kind": "start", "rank": None, "sentence": _one_line(error)})
        finally:
            if conversation is not None:
                conversation.close()
    try:
        transfer.publish()
    except (OrdersError, OSError) as error:
        return _refuse(f"the output cannot be copied: {_one_line(error)}")
    # The cloud ends all instances if one fails; instances that train alone do not depend on each other.
    return 1 if failed and job.together else 0


def _follow(conversation: Conversation, own: InstanceOrders, start: Mapping[str, Any], folder: Path) -> None:
    """Give the agent its orders and follow it until its ranks have ended."""
    conversation.ask({"op": "hello", "log_dir": str(folder / own.name), "lease_s": 0}, "hello")
    leased = conversation.ask(
        {"op": "lease", "count": own.nproc, "candidates": list(range(own.nproc))}, "leased", "busy"
    )
    if leased["type"] == "busy":
        raise AgentFailed("another training uses the instance's devices: {}".format("; ".join(leased["holders"])))

    def stop(number: int, _: object) -> None:
        conversation.stop(f"the job was stopped ({signal.Signals(number).name})")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        conversation.send(start)
        conversation.follow()
    finally:
        signal.signal(signal.SIGTERM, before)


def _start_order(own: InstanceOrders, instance: Instance, transfer: Transfer, folder: Path) -> dict[str, Any]:
    """Return the message that starts the ranks, with the paths and addresses of this instance."""
    text = json.dumps(own.start)
    cores = len(os.sched_getaffinity(0))
    values = {
        CODE: str(CODE_ROOT),
        LOGS: str(folder / own.name),
        PYTHON: sys.executable,
        DATA: transfer.data() if DATA in text else "",
        THREADS: str(threads_per_rank(cores, own.nproc)),
        **{orders.host(number): address for number, address in enumerate(instance.hosts)},
    }
    order: dict[str, Any] = orders.filled(own.start, values)
    return order


def _refuse(sentence: str) -> int:
    print(
        f"{PREFIX}1 " + json.dumps({"type": "fault", "kind": "start", "rank": None, "sentence": sentence}), flush=True
    )
    return 1


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
