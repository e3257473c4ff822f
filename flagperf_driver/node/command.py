"""A tool's output, within a deadline; whatever it started ends with it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Mapping, Sequence

if TYPE_CHECKING:
    import subprocess

OUTPUT_AT_MOST = 1 << 20
_live: set[int] = set()
_closing = threading.Event()


class CommandError(RuntimeError):
    """A sentence on why there is no output."""


class Ending(CommandError):
    """There is no output because the sampler ends."""


def run(argv: Sequence[str], deadline_s: float, env: Mapping[str, str] | None = None) -> str:
    """What it printed. In the C locale: its words are read by a program."""
    import subprocess  # only here: most hosts have nothing to run

    # Imported before the fork: after it, there is only this thread, and locks that others held stay held.
    from flagperf_driver.node.processes import die_with

    def settle(sampler: int = os.getpid()) -> None:
        os.setpgrp()  # to be ended with what it starts; of this session, so that whoever ends that ends it too
        die_with(sampler)

    surroundings = {**os.environ, "LC_ALL": "C", **(env or {})}
    if _closing.is_set():
        raise Ending(f"{argv[0]}: the sampler is ending")
    try:
        child = subprocess.Popen(
            list(argv),
            env=surroundings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=settle,
        )
    except (OSError, ValueError) as error:
        raise CommandError(f"{argv[0]}: {getattr(error, 'strerror', None) or error}") from None
    _live.add(child.pid)
    try:
        return _output(child, argv, deadline_s)
    finally:
        _kill(child.pid)
        child.wait()
        _live.discard(child.pid)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def end_all() -> None:
    """No tool outlives the sampler."""
    _closing.set()
    for group in list(_live):
        _kill(group)


def _kill(group: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        os.killpg(group, signal.SIGKILL)


def _output(child: subprocess.Popen[bytes], argv: Sequence[str], deadline_s: float) -> str:
    assert child.stdout is not None
    assert child.stderr is not None
    said: dict[int, bytearray] = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    out, err = said
    waiting = [out, err]
    end = time.monotonic() + deadline_s
    while waiting:
        ready = select.select(waiting, [], [], max(0.0, end - time.monotonic()))[0]
        if not ready:
            raise CommandError(f"{argv[0]} had not ended after {deadline_s:g} s and was stopped")
        for pipe in ready:
            data = os.read(pipe, 65536)
            said[pipe] += data
            if not data:
                waiting.remove(pipe)
            if len(said[pipe]) > OUTPUT_AT_MOST:
                raise CommandError(f"{argv[0]} printed more than {OUTPUT_AT_MOST} bytes and was stopped")
    code = _code(child, argv, end, deadline_s)
    if code and _closing.is_set():
        raise Ending(f"{argv[0]}: the sampler is ending")
    if code:
        last = (bytes(said[err]).decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise CommandError(f"{argv[0]} ended with {code}: {last[:200]}")
    return bytes(said[out]).decode(errors="replace")


def _code(child: subprocess.Popen[bytes], argv: Sequence[str], end: float, deadline_s: float) -> int:
    """It may have closed its output and live on."""
    while child.poll() is None:
        if time.monotonic() > end:
            raise CommandError(f"{argv[0]} had not ended after {deadline_s:g} s and was stopped")
        time.sleep(0.005)
    return child.returncode
