"""Run a vendor's probe.py for ``process.py``: one line of input is one reading, and one line of JSON is its answer.

The probe is loaded and run in a child process that is confined: it writes nothing but to devices that exist, and has no
socket. This process runs none of the vendor's code. After each answer and at the end of its input, it kills whatever
the probe or its tool has started and left, also daemons.
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
from pathlib import Path
from typing import Any, Callable

from flagperf_driver.node import processes, run_tool
from flagperf_driver.node.confinement import NotConfined, Permissions, confine
from flagperf_driver.node.sampling.probe.tool import ProbeError, Tool

_LONGEST_ANSWER = 1 << 22


def serve(path: str) -> int:
    """Answer requests until the caller leaves; return the exit code of a child that ended before, as a shell does."""
    processes.adopt_orphans()
    requests, to_child = os.pipe()
    from_child, answers = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        exit_code = 1
        try:
            processes.die_with(parent)
            _close_all_but(requests, answers)
            _answer_requests(path, requests, answers)
            exit_code = 0
        finally:
            os._exit(exit_code)
    os.close(requests)
    os.close(answers)
    try:
        if _relay(child, to_child, from_child):
            return 0
        status = os.waitpid(child, 0)[1]
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    finally:
        processes.kill_children()


def _relay(child: int, to_child: int, from_child: int) -> bool:
    """Pass requests and answers on until the caller or the child leaves; return False if the child has left."""
    answer = b""
    while True:
        ready = select.select([0, from_child], [], [])[0]
        if 0 in ready:
            request = os.read(0, 4096)
            if not request:
                return True
            os.write(to_child, request)
        if from_child in ready:
            part = os.read(from_child, 1 << 16)
            answer += part
            if not part or len(answer) > _LONGEST_ANSWER:
                return bool(part)
            if answer.endswith(b"\n"):
                processes.kill_children(child, of_it=True)
                _write(1, answer)
                answer = b""


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def _close_all_but(*kept: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # of the list itself


# -- the vendor's code ---------------------------------------------------------------------------------------------


def _answer_requests(path: str, requests: int, answers: int) -> None:
    not_confined = None
    try:
        confine(Permissions(writable=[], devices=list(_devices()), sockets=False))
    except NotConfined as error:
        not_confined = str(error)

    def send(body: Callable[[], dict[str, Any]]) -> None:
        try:
            text = json.dumps(body(), default=repr)
        except (ProbeError, run_tool.CommandError) as error:
            text = json.dumps({"error": str(error)})
        except BaseException as error:
            text = json.dumps({"error": f"the probe's process: {type(error).__name__}: {error}"})
        _write(answers, text.encode() + b"\n")

    tools: list[Tool] = []

    def load() -> dict[str, Any]:
        tools.append(Tool(path))
        facts = {name: getattr(tools[0], name) for name in ("command", "every_s", "deadline_s", "environment")}
        return {**facts, "not_confined": not_confined}

    send(load)
    while tools and os.read(requests, 4096):
        send(lambda: {"readings": tools[0].read()})


def _devices() -> list[str]:
    """Return the devices of /dev and its folders of devices, without disks and without memory that is shared."""
    paths = (path for path in Path("/dev").iterdir() if path.name not in ("shm", "mqueue", "pts"))
    return [str(path) for path in paths if not stat.S_ISBLK(path.lstat().st_mode)]


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1]))
