"""The own machine, and hosts that a command of the site reaches: ``kubectl exec -i {host} --``, ``docker exec -i``."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Mapping

from . import silence
from .carriers import CommandCarrier
from .cluster import HOST_WORD, Address, ClusterConfig
from .stream import HostStream
from .stream_host import StreamHost


class LocalHost(StreamHost):
    """The machine on which the harness itself runs."""

    is_local = True

    def __init__(self, name: str = "localhost") -> None:
        # No signs of life: this machine is not lost, however long a debugger or another program stops it.
        super().__init__(name, "127.0.0.1", sys.executable, beat_s=math.inf)

    def reconnect(self) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._drop()  # a later program starts the process again

    def _open_stream(self) -> HostStream:
        return self._stream_over(CommandCarrier(self.name, self._command, os.environ))

    def _place(self, env: Mapping[str, str] | None) -> dict[str, object]:
        return {"env": {**os.environ, **(env or {})}, "folder": os.getcwd()}  # noqa: PTH109 - those of this moment


class CommandHost(StreamHost):
    """A machine or a container in which a command runs what follows it, and passes its input and output."""

    def __init__(self, address: Address, conf: ClusterConfig) -> None:
        super().__init__(address.name, address.host, conf.python, beat_s=silence.ping_s(len(conf.hosts)))
        self._words = [word.replace(HOST_WORD, address.host) for word in shlex.split(conf.reach or "")]

    def _open_stream(self) -> HostStream:
        stream = self._stream_over(CommandCarrier(self.name, [*self._words, *self._command], os.environ), address=True)
        # The name by which the command knows the host may mean nothing to the other hosts.
        found = str(stream.greeting["address"])
        self.address = self.address if found.startswith("127.") or not found else found
        return stream
