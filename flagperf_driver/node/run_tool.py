"""Run a tool with a deadline and return its output; its child processes are killed with it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Callable, Mapping, Sequence

if TYPE_CHECKING:
    import subprocess

OUTPUT_AT_MOST = 1 << 20
_running: set[int] = set()
_calls: list[Callable[[], object]] = []
_closing = threading.Event()


class CommandError(RuntimeError):
    """The tool gave no usable output; the text is the reason."""


class SamplerEnding(CommandError):
    """The tool was not run, or was killed, because the sampler is ending."""


def run(argv: Sequence[str], deadline_s: float, env: Mapping[str, str] | None = None) -> str:
    """Run the tool in the C locale and return its standard output; raise CommandError on any failure."""
    import subprocess  # imported here because most hosts run no tool

    # Imported before the fork: in the child, an import lock that another thread holds would never be released.
    from flagperf_driver.node.processes import die_with

    def set_up(sampler: int = os.getpid()) -> None:
        os.setpgrp()  # a group of its own, to kill it with its children; the session stays, to be killed with it
        die_with(sampler)

    environment = {**os.environ, "LC_ALL": "C", **(env or {})}
    if _closing.is_set():
        raise SamplerEnding(f"{argv[0]}: the sampler is ending")
    try:
        child = subprocess.Popen(
            list(argv),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=set_up,
        )
    except (OSError, ValueError) as error:
        raise CommandError(f"{argv[0]}: {getattr(error, 'strerror', None) or error}") from None
    _running.add(child.pid)
    try:
        return _output(child, argv, deadline_s)
    finally:
        _kill(child.pid)
        child.wait()
        _running.discard(child.pid)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def on_end(call: Callable[[], object]) -> None:
    """Make this call, too, when all running tools end."""
    _calls.append(call)


def forget(call: Callable[[], object]) -> None:
    with contextlib.suppress(ValueError):
        _calls.remove(call)


def is_ending() -> bool:
    return _closing.is_set()


def end_all() -> None:
    """Kill all running tools, and let no other start."""
    _closing.set()
    for call in list(_calls):
        call()
    for group in list(_running):
        _kill(group)


def _kill(group: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        os.killpg(group, signal.SIGKILL)


def _output(child: subprocess.Popen[bytes], argv: Sequence[str], deadline_s: float) -> str:
    assert child.stdout is not None
    assert child.stderr is not None
    output: dict[int, bytearray] = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    out, err = output
    waiting = [out, err]
    end = time.monotonic() + deadline_s
    while waiting:
        ready = select.select(waiting, [], [], max(0.0, end - time.monotonic()))[0]
        if not ready:
            raise CommandError(f"{argv[0]} did not end within {deadline_s:g} s and was killed")
        for pipe in ready:
            data = os.read(pipe, 65536)
            output[pipe] += data
            if not data:
                waiting.remove(pipe)
            if len(output[pipe]) > OUTPUT_AT_MOST:
                raise CommandError(f"{argv[0]} printed more than {OUTPUT_AT_MOST} bytes and was killed")
    code = _code(child, argv, end, deadline_s)
    if code and _closing.is_set():
        raise SamplerEnding(f"{argv[0]}: the sampler is ending")
    if code:
        last = (bytes(output[err]).decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise CommandError(f"{argv[0]} ended with exit code {code}: {last[:200]}")
    return bytes(output[out]).decode(errors="replace")


def _code(child: subprocess.Popen[bytes], argv: Sequence[str], end: float, deadline_s: float) -> int:
    """Return the exit code; the tool may run on after it has closed its output."""
    while child.poll() is None:
        if time.monotonic() > end:
            raise CommandError(f"{argv[0]} did not end within {deadline_s:g} s and was killed")
        time.sleep(0.005)
    return child.returncode
