"""Find, end and report leftovers of rounds whose agent is dead.

A process of a round has the log folder in its environment, a container has it in a label. Log folders stay for a week,
because their run may still fetch them.

``python -m flagperf_driver.node.orphans`` ends and removes the leftovers of one round for its controller.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Callable, Iterator

from flagperf_driver.node import docker_engine, request_server, temporary
from flagperf_driver.node.folder import ROUNDS, is_orphaned, scratch
from flagperf_driver.node.processes import log_dir_of

LABEL = "flagperf.log_dir"
LOOK_LABEL = "flagperf.look"  # of a container that a runtime starts to inspect an image
_ANSWER_S = 5.0
_LOOK_S = 600.0  # no inspection takes longer
_KEPT_S = 7 * 24 * 3600.0
_TRIES = 5  # to remove a container; another program may be removing it
_AGAIN_S = 1.0


def remove(docker: str | None = None) -> list[str]:
    """End and remove all leftovers on this host; return a description of each, with its round's folder."""
    socket = docker or docker_engine.SOCKET
    return [
        *_containers(socket),
        *_containers(socket, LOOK_LABEL, lambda container: container.created < time.time() - _LOOK_S),
        *_processes(),
        *temporary.remove_leftovers(),
        *_old_folders(),
    ]


def _old_folders() -> Iterator[str]:
    """Remove log folders that are older than a week."""
    for folder in scratch().glob(f"{ROUNDS}/*"):
        try:
            age_s = time.time() - max(entry.stat().st_mtime for entry in [folder, *folder.iterdir()])
        except OSError:
            continue
        # An agent that ended in order and left its logs to be fetched later has removed its lock.
        if age_s > _KEPT_S and is_orphaned(folder, if_gone=True):
            shutil.rmtree(str(folder), ignore_errors=True)
            yield f"logs of {age_s / 86400:.0f} days ago in {folder}"


def _processes() -> Iterator[str]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - a Path each is slow with thousands of them
        if name.isdigit():
            log_dir = log_dir_of(int(name))
            if log_dir and is_orphaned(Path(log_dir)):
                yield from (f"{ended} of {log_dir}" for ended in _end(int(name)))


def _end(pid: int) -> Iterator[str]:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return
    yield f"{name} (pid {pid})"


def end_round(request: request_server.Request) -> request_server.Answer:
    """End every process of the round with this ``log_dir``, and remove its containers from the ``docker`` engine.

    ``docker`` is null if the controller knows of no container; containers of the round are removed in any case.
    """
    log_dir = str(request["log_dir"])
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and log_dir_of(int(name)) == log_dir]  # noqa: PTH208
    swept = [ended for pid in sorted(pids) for ended in _end(pid)]
    list(temporary.remove_leftovers())  # now that the agent is dead, this includes the ranks' temporary folder
    problems: list[str] = []
    if request.get("docker") or os.access(docker_engine.SOCKET, os.R_OK | os.W_OK):
        docker = docker_engine.DockerEngine(request.get("docker") or docker_engine.SOCKET, _ANSWER_S)
        try:
            swept += _remove_of_round(docker, log_dir)
        except docker_engine.EngineError as error:
            if request.get("docker"):
                problem = "the container of the round may remain until the next run on this host removes it"
                problems.append(f"{problem}: {error}")
    return {"swept": swept, "problems": problems}


def _remove_of_round(docker: docker_engine.DockerEngine, log_dir: str) -> Iterator[str]:
    for container in docker.labelled(f"{LABEL}={log_dir}"):
        for tries_left in reversed(range(_TRIES)):
            try:
                if docker.remove(container.id):
                    yield f"container {container.name}"
                break
            except docker_engine.EngineError:
                if not tries_left:
                    raise
                time.sleep(_AGAIN_S)


def remove_containers_of(log_dir: Path) -> None:
    """Remove the containers of one round; its own agent calls this."""
    for _ in _containers(docker_engine.SOCKET, LABEL, lambda container: container.labels[LABEL] == str(log_dir)):
        pass


def _is_left(container: docker_engine.ListedContainer) -> bool:
    # Unlike a process, whose log folder may be in another mount namespace, a container has its log folder on this host:
    # if the folder is gone, the container is a leftover.
    return is_orphaned(Path(container.labels[LABEL]), if_gone=True)


def _containers(
    socket: str, label: str = LABEL, is_left: Callable[[docker_engine.ListedContainer], bool] = _is_left
) -> Iterator[str]:
    if not os.access(socket, os.R_OK | os.W_OK):
        return
    docker = docker_engine.DockerEngine(socket, _ANSWER_S)
    try:
        for container in docker.labelled(label):
            if is_left(container) and docker.remove(container.id):
                yield f"container {container.name} of {container.labels.get(LABEL, container.image)}"
    except docker_engine.EngineError:
        return  # preflight reports the engine's error itself


if __name__ == "__main__":
    request_server.serve(end_round)
