"""Ask a module of the driver on a host to prepare the Python of a case."""

from __future__ import annotations

from typing import Any

from pytest_flagperf.hosts import Host, HostError, HostLost
from pytest_flagperf.hosts.deploy import Code, call_module
from pytest_flagperf.hosts.replies import Shape

from . import OnProgress, RuntimeSetupError


def ask(
    host: Host,
    code: Code,
    module: str,
    request: dict[str, Any],
    *,
    timeout_s: float,
    shape: Shape,
    progress: OnProgress,
) -> dict[str, Any]:
    """Return the answer, as ``call_module``; RuntimeSetupError if the module has failed, HostLost without the host."""

    def report(answer: Any) -> None:
        if answer["type"] == "progress":
            progress(answer["line"])

    try:
        return call_module(host, code, module, request, timeout_s=timeout_s, shape=shape, on_message=report)
    except HostLost:
        raise
    except HostError as error:
        raise RuntimeSetupError(str(error)) from error
