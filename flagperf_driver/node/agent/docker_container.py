"""Run a container that the controller has created in Docker's engine, until it ends or at SIGTERM; then remove it.

``python -m flagperf_driver.node.agent.docker_container SOCKET ID`` is the agent's child in the round's log folder, so
that each container is a program. It appends its reports to those of the container's starter.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress

from flagperf_driver.node.agent.starter import append
from flagperf_driver.node.docker_engine import DockerEngine, EngineError, NoSuchContainerError

_AGAIN_S = 1.0
_REMOVE_FOR_S = 20.0  # Docker may be restarting


def main(socket: str, container: str) -> int:
    engine = DockerEngine(socket)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # the agent ends this process to remove the container
        append([{"type": "container", "sentence": _run(engine, container)}])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return 0 if _remove(engine, container) else 1


def _run(engine: DockerEngine, container: str) -> str:
    """Start the container; return how it ended, as the end of a sentence, and print its last lines."""
    try:
        engine.start(container)
    except EngineError as error:
        return f"could not be started: {error}"
    while True:
        try:
            engine.wait(container)
            state = engine.state(container)
            print(engine.logs(container), flush=True)
        except NoSuchContainerError as error:
            return f"ended, and the reason is not known: {error}"
        except EngineError:  # the engine may be restarting, which does not end the container
            time.sleep(_AGAIN_S)
        else:
            return state.sentence


def _remove(engine: DockerEngine, container: str) -> bool:
    """Try for a while to remove the container; report the first problem, and the last one."""
    give_up_at, reported = time.monotonic() + _REMOVE_FOR_S, False
    while True:
        try:
            engine.remove(container)
        except EngineError as error:
            late = time.monotonic() > give_up_at
            if late or not reported:
                reported = True
                problem = "remains until the next run on this host removes it" if late else "cannot be removed yet"
                append([{"type": "warning", "sentence": f"container {container[:12]} {problem}: {error}"}])
            if late:
                return False
            time.sleep(_AGAIN_S)
        else:
            return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
