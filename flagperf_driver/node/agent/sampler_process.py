"""The sampler beside the ranks: a child that ends with its orders' line, and whose death is only a warning."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Callable, Mapping

from flagperf_driver.node import processes
from flagperf_driver.node.deployed_code import CODE_ROOT, module_argv

_MODULE = "flagperf_driver.node.sampling.sampler"
_PATIENCE_S = 3.0
_WORDS = 400  # of what it said on stderr


class SamplerProcess:
    """The sampler's process."""

    def __init__(self, orders: Mapping[str, Any], warn: Callable[[str], None], module: str = _MODULE) -> None:
        self._warn = warn
        self._kill_at: float | None = None
        self._killed = False
        self._words, words = os.pipe()
        parent = os.getpid()
        self._child: subprocess.Popen[bytes] | None = subprocess.Popen(
            module_argv(sys.executable, str(CODE_ROOT), module),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=words,
            start_new_session=True,
            preexec_fn=lambda: processes.die_with(parent),  # safe: this process has one thread
        )
        os.close(words)
        os.set_blocking(self._words, False)
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(orders).encode() + b"\n")
            self._child.stdin.flush()

    @property
    def ended(self) -> bool:
        return self._child is None

    def turn(self) -> None:
        """See whether it is still there, and end it where it should not be."""
        if self._child is None:
            return
        if processes.has_ended(self._child.pid):
            self._bury(self._child)
        elif self._kill_at is not None and time.monotonic() > self._kill_at:
            self._kill_or_give_up(self._child)

    def end(self) -> None:
        """Have it write its last figures and go."""
        if self._child is not None and self._kill_at is None:
            self._kill_at = time.monotonic() + _PATIENCE_S
            assert self._child.stdin is not None
            with suppress(BrokenPipeError):
                self._child.stdin.close()

    def abandon(self) -> None:
        if self._child is not None:
            processes.kill_session(self._child.pid)

    def _kill_or_give_up(self, child: subprocess.Popen[bytes]) -> None:
        """A driver that hangs keeps who asks it in the kernel; the round's devices must be free all the same."""
        if self._killed:
            self._warn("the sampler cannot be killed: it is stuck in the kernel")
            self._child = None
            os.close(self._words)
            return
        self._killed = True
        self._kill_at = time.monotonic() + _PATIENCE_S
        self._warn(f"the sampler did not end within {_PATIENCE_S:g} s and was killed")
        processes.kill_session(child.pid)

    def _bury(self, child: subprocess.Popen[bytes]) -> None:
        processes.kill_session(child.pid)
        code = child.wait()
        self._child = None
        with suppress(BlockingIOError):
            said = os.read(self._words, 1 << 16).decode("utf-8", "replace").strip()
            if code != 0 or self._kill_at is None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                last = said.splitlines()[-1][:_WORDS] if said else "without a word"
                self._warn(f"the sampler {how}: {last}; the host's figures end there")
        os.close(self._words)
