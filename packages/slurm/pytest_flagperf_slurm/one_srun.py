"""One srun for all nodes of a job: it starts the relay on each of them, and each relay connects to this process.

srun itself needs such connections: its nodes send their output to ports of this machine (``SrunPortRange``). Its own
input and output cannot carry many relays: it sends its input to all nodes, and cuts lines where a program ends. A node
whose relay does not connect gets an srun of its own.
"""

from __future__ import annotations

import hmac
import logging
import random
import re
import secrets
import select
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_flagperf.hosts import silence
from pytest_flagperf.hosts.carriers import CommandCarrier
from pytest_flagperf.hosts.stream import TEXT_THERE, preface

from .jobs_and_nodes import SlurmError, run
from .socket_carrier import SocketCarrier

CONNECT_S = 60.0  # Slurm may still prepare the node
_RELAY = Path(__file__).with_name("relay.py").read_bytes()
_HARMLESS = "lacks support for cpu binding"
_log = logging.getLogger("flagperf.slurm")
_TOKEN_BYTES = 32
_HELLO_BYTES = 2 * _TOKEN_BYTES + 256  # the token in hexadecimal digits, and NAME_BYTES of relay.py
_UNREACHABLE = "unreachable"  # UNREACHABLE of relay.py
_OTHERS = 64  # connections without a greeting, beside those of the nodes
_POLL_S = 0.5


def srun(name: str, argv: Sequence[str], env: Mapping[str, str], timeout_s: float = CONNECT_S) -> CommandCarrier:
    """Start srun. When it is killed, its step does not end, whose agents have leases."""
    return CommandCarrier(name, argv, env, _words, timeout_s)


def _words(line: str) -> str:
    return "" if _HARMLESS in line else line.removeprefix("srun: ").removeprefix("error: ")


def node_preface(request: Mapping[str, object], beat_s: float) -> bytes:
    """Return what the command on each node reads first."""
    return preface({**request, "program": TEXT_THERE.decode()}, beat_s, _RELAY)


class OneSrun:
    """The connections of the relays that one srun has started, until they are used."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        request: Mapping[str, object],
        nodes: Sequence[str],
    ) -> None:
        self._name = name
        self._token = secrets.token_hex(_TOKEN_BYTES)
        self._missing = set(nodes)
        self._connections: dict[str, SocketCarrier] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._listener = _listen(_port_range())
        self._listener.setblocking(False)
        try:
            port = self._listener.getsockname()[1]
            self._srun = srun(name, argv, env)
            with suppress(OSError):  # it has ended: no node connects
                self._srun.write(
                    node_preface({**request, "port": port, "token": self._token}, silence.ping_s(len(nodes)))
                )
        except BaseException:
            self._listener.close()
            raise
        self._srun.end_input()
        self._thread = threading.Thread(target=self._accept, name=f"relays of {name}", daemon=True)
        self._thread.start()

    def connection(self, node: str) -> SocketCarrier | None:
        """Wait for the connection of a node; None if it does not come. Each is given once."""
        with self._changed:
            self._changed.wait_for(lambda: node not in self._missing)
            return self._connections.pop(node, None)

    def _last_words(self) -> str:
        return self._srun.last_words() if self._srun.process.poll() is not None else "the process on the node has ended"

    def close(self) -> None:
        """Close the unused connections, and wait for srun, which ends after the last relay."""
        self._closing = True
        self._thread.join()
        for connection in self._connections.values():
            connection.close()
        self._srun.close()

    # -- the thread that accepts connections ---------------------------------------------------------------

    def _accept(self) -> None:
        greeting: dict[int, tuple[socket.socket, bytearray]] = {}
        most = len(self._missing) + _OTHERS
        poll = select.poll()
        for fd in (self._listener.fileno(), self._srun.fileno()):
            poll.register(fd, select.POLLIN)
        deadline, words = time.monotonic() + CONNECT_S, bytearray()
        try:
            while self._missing and not self._closing and time.monotonic() < deadline:
                for fd, _ in poll.poll(_POLL_S * 1000):
                    if fd == self._srun.fileno():
                        if (data := self._srun.read()) == b"":
                            return  # srun has ended
                        words += data or b""
                        self._forget_unreachable(words)
                    elif fd == self._listener.fileno():
                        with suppress(BlockingIOError, ConnectionError):
                            connection, _ = self._listener.accept()
                            if len(greeting) >= most:
                                connection.close()
                                continue
                            connection.setblocking(False)
                            greeting[connection.fileno()] = connection, bytearray()
                            poll.register(connection, select.POLLIN)
                    elif self._read_greeting(*greeting[fd]):
                        poll.unregister(fd)
                        del greeting[fd]
        except OSError as error:
            _log.info("%s: %s", self._name, error)
        finally:
            self._listener.close()
            for connection, _ in greeting.values():
                connection.close()
            if self._missing:
                _log.info("%s: no connection from %s", self._name, ", ".join(sorted(self._missing)))
            self._settle(set(self._missing))

    def _read_greeting(self, connection: socket.socket, received: bytearray) -> bool:
        """Read a part of the first bytes of a connection; return True when they are complete, or wrong."""
        try:
            data = connection.recv(_HELLO_BYTES - len(received))
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        received += data
        if data and len(received) < _HELLO_BYTES:
            return False
        token, node = received[: 2 * _TOKEN_BYTES], received[2 * _TOKEN_BYTES :].decode("utf-8", "replace").strip()
        if not hmac.compare_digest(bytes(token), self._token.encode()) or node not in self._missing:
            _log.info("%s: a connection without the token was refused", self._name)
            connection.close()
            return True
        connection.setblocking(True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            self._connections[node] = SocketCarrier("srun", connection, self._last_words)
        self._settle({node})
        return True

    def _forget_unreachable(self, words: bytearray) -> None:
        """Do not wait for the nodes that report that they cannot connect; remove the lines that were read."""
        *lines, rest = words.decode("utf-8", "replace").split("\n")
        words[:] = rest[-_HELLO_BYTES:].encode()
        for line in lines:
            if line.startswith(f"{_UNREACHABLE} "):
                _log.info("%s: %s", self._name, line)
                self._settle({line.split()[1]})

    def _settle(self, nodes: Collection[str]) -> None:
        with self._changed:
            self._missing.difference_update(nodes)
            self._changed.notify_all()


def _listen(ports: range | None) -> socket.socket:
    """Listen on a free port, of these if the site limits them."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for port in random.sample(ports, len(ports)) if ports else (0,):
        with suppress(OSError):
            return socket.create_server(("", port), family=family, backlog=4096, dualstack_ipv6=both)
    raise SlurmError(f"no free port{f' in {ports.start}-{ports.stop - 1} (SrunPortRange)' if ports else ''}")


def _port_range() -> range | None:
    """Return the ports on which the nodes may reach srun; None if all."""
    found = re.search(r"SrunPortRange\s*=\s*(\d+)-(\d+)", run(["scontrol", "show", "config"]))
    first, last = map(int, found.groups()) if found else (0, 0)
    return range(first, last + 1) if first else None
