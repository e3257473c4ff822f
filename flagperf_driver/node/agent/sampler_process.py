"""Start and end the sampler, a child process of the agent. If it dies, the round continues with a warning."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Callable, Mapping

from flagperf_driver.addresses import redacted_text
from flagperf_driver.node import processes
from flagperf_driver.node.deployed_code import CODE_ROOT, module_argv
from flagperf_driver.rank_process import RankProcess

_MODULE = "flagperf_driver.node.sampling.sampler"
_END_S = 3.0  # maximum time from the order to end to SIGKILL, and from SIGKILL to the end
_LONGEST_MESSAGE = 400
_LIBRARIES = "ATEN BLIS CUBLAS CUBLASLT CUDA CUDNN DNNL FLAGS GOMP KMP MKL NCCL OMP ONEDNN OPENBLAS PYTORCH TORCH XLA"
"""The first words of variables that change what frameworks and their libraries compute."""


def inherited_variables(rank: RankProcess) -> str:
    """Return the variables of libraries that a rank inherits, without secrets; the plan sets others."""
    env = rank.environment(os.environ, {})
    names = [name for name in sorted(env) if name not in rank.env and name.partition("_")[0] in _LIBRARIES.split()]
    return ", ".join(f"{name}={redacted_text(env[name])}" for name in names) or "none"


class SamplerProcess:
    """The sampler's process, from its start to its end."""

    def __init__(self, orders: Mapping[str, Any], warn: Callable[[str], None], module: str = _MODULE) -> None:
        self._warn = warn
        self._kill_at: float | None = None
        self._killed = False
        self._stderr, stderr = os.pipe()
        parent = os.getpid()
        self._child: subprocess.Popen[bytes] | None = subprocess.Popen(
            module_argv(sys.executable, str(CODE_ROOT), module),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=lambda: processes.die_with(parent),  # safe: this process has one thread
        )
        os.close(stderr)
        os.set_blocking(self._stderr, False)
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(orders).encode() + b"\n")
            self._child.stdin.flush()

    @property
    def ended(self) -> bool:
        return self._child is None

    def process(self) -> None:
        """Check whether the sampler has ended, and kill it if it ends too late."""
        if self._child is None:
            return
        if processes.has_ended(self._child.pid):
            self._reap(self._child)
        elif self._kill_at is not None and time.monotonic() > self._kill_at:
            self._kill_or_give_up(self._child)

    def end(self) -> None:
        """Tell the sampler to write its last samples and to end."""
        if self._child is not None and self._kill_at is None:
            self._kill_at = time.monotonic() + _END_S
            assert self._child.stdin is not None
            with suppress(BrokenPipeError):
                self._child.stdin.close()

    def abandon(self) -> None:
        if self._child is not None:
            processes.kill_session(self._child.pid)

    def _kill_or_give_up(self, child: subprocess.Popen[bytes]) -> None:
        """Kill the sampler; give up if a driver keeps it in the kernel, because the round must release its devices."""
        if self._killed:
            self._warn("the sampler cannot be killed: it is stuck in the kernel")
            self._child = None
            os.close(self._stderr)
            return
        self._killed = True
        self._kill_at = time.monotonic() + _END_S
        self._warn(f"the sampler did not end within {_END_S:g} s and was killed")
        processes.kill_session(child.pid)

    def _reap(self, child: subprocess.Popen[bytes]) -> None:
        processes.kill_session(child.pid)
        code = child.wait()
        self._child = None
        with suppress(BlockingIOError):
            text = os.read(self._stderr, 1 << 16).decode("utf-8", "replace").strip()
            if code != 0 or self._kill_at is None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                last = text.splitlines()[-1][:_LONGEST_MESSAGE] if text else "no output"
                self._warn(f"the sampler {how}: {last}; the measurements of the host end at this point")
        os.close(self._stderr)
