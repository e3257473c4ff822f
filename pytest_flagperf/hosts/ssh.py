"""Hosts over SSH: a permanent connection, the detection of its loss, and messages if it cannot be opened.

paramiko waits forever on a connection that is cut or whose host hangs, and its keepalive requests no answer.
Therefore each connection that is silent is pinged, and given up after eight seconds without an answer (silence.py).
The thread of paramiko that reads the connection sends these pings when it has nothing to read: with 1,024 hosts, one
more thread for each keeps a core busy.
"""

from __future__ import annotations

import base64
import errno
import hmac
import logging
import math
import os
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import fabric
import paramiko
from paramiko.common import cMSG_GLOBAL_REQUEST
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from flagperf_driver.ports import reach

from . import HostError, HostLost, silence
from .cluster import Address, ClusterConfig, parse_host
from .remote import RemoteHost
from .session import Stream

CONNECT_S = 10.0
# sshd allows ten sessions a connection by default; the other two may still be ending.
SESSIONS = 8
_BUSY_S = 0.05
_KEEPALIVE = "keepalive@openssh.com"
# How long paramiko's thread waits for data before it looks around; its own 0.1 s keep a core busy with 1,000 hosts.
_LOOK_S = 1.0
_READ_BYTES = 1 << 16
_CERTIFICATE = "-cert.pub"
# Faster than paramiko's first choice: 100 MB in 0.6 s instead of 0.9 to 1.4 s.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")

# HostError reports failures; paramiko's log would repeat them in every report.
_LOG = "pytest_flagperf.paramiko"
logging.getLogger(_LOG).disabled = True
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def ssh_hosts(conf: ClusterConfig) -> tuple[SSHHost, ...]:
    """Return the hosts of a cluster, not connected yet; they share the gateway."""
    address = parse_host(conf.gateway) if conf.gateway else None
    config = fabric.Config()  # reads ~/.ssh/config, once for all hosts
    gateway = Gateway(address, conf, config) if address else None
    return tuple(SSHHost(address, conf, config, gateway) for address in conf.addresses())


class _Wire:
    """A connection's socket: it reads ahead for paramiko, and pings the other end while that is silent."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._ahead = b""
        self._writing = False
        self._every_s = math.inf
        self._ping: Callable[[], None] = _nothing
        self._waiting = threading.Lock()  # a writing thread that is blocked looks around, too
        self._received_at = self._looked_at = time.monotonic()
        self._waited_s: float | None = None  # seconds without an answer since a ping
        self.reason = "the other end closed it"  # the reason of a loss

    def recv(self, size: int) -> bytes:
        """Return received data; paramiko's thread calls this twice for each message."""
        if not self._ahead:
            self._ahead = self._receive()
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def _receive(self) -> bytes:
        try:
            data: bytes = self._sock.recv(_READ_BYTES)
        except OSError as error:
            if isinstance(error, TimeoutError):
                # paramiko ignores a TimeoutError, also the kernel's when it gives up the connection.
                if not self._is_late() and error.errno is None:
                    raise
                error = self._given_up()
            self.reason = _text(error)
            raise error from None
        with self._waiting:
            self._received_at = time.monotonic()
            answered, self._waited_s = self._waited_s is not None, None
        if answered:
            self._sock.settimeout(self._every_s)
        return data

    def send(self, data: bytes) -> int:
        """Send data; after a TimeoutError, paramiko's writing thread keeps its lock and calls this again."""
        self._writing = True
        try:
            sent: int = self._sock.send(data)
        except TimeoutError:
            if not self._is_late():
                raise
            raise self._given_up() from None
        self._writing = False
        return sent

    def ping_when_silent(self, every_s: float, ping: Callable[[], None]) -> None:
        """From now on, ping the other end when it has been silent for so long."""
        self._every_s, self._ping = every_s, ping
        self._sock.settimeout(every_s)

    def expect(self) -> None:
        """Expect an answer, from now on."""
        with self._waiting:
            self._expect()

    def _expect(self) -> None:
        self._looked_at, self._waited_s = time.monotonic(), 0.0
        self._sock.settimeout(_LOOK_S)

    def _is_late(self) -> bool:
        """Return True if the other end has not answered in time; ping it if it has been silent for long."""
        with self._waiting:
            now = time.monotonic()
            if self._waited_s is not None:
                # A longer pause is one of this process, which may have been stopped, or waited for a busy core.
                self._waited_s += min(now - self._looked_at, 2 * _LOOK_S)
                self._looked_at = now
                return self._waited_s > silence.LINK_S
            if now - self._received_at < self._every_s:
                return False
            self._expect()
        if not self._writing:  # else the data that wait are as good as a ping
            self._ping()
        return False

    def _given_up(self) -> OSError:
        self.reason = f"no answer for {silence.LINK_S:g} s"
        return ConnectionAbortedError(errno.ECONNABORTED, self.reason)

    def settimeout(self, _: float) -> None:
        self._sock.settimeout(_LOOK_S)

    def close(self) -> None:
        """Close the socket; ``recv`` ends at once, not when its timeout has passed."""
        with suppress(OSError, EOFError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with suppress(EOFError):  # a channel of a gateway whose connection has ended
            self._sock.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def _nothing(*_: object) -> None:
    """Do nothing."""


class Link:
    """An open connection; a lost connection is not reopened."""

    errors = (paramiko.SSHException,)

    def __init__(
        self, address: Address, conf: ClusterConfig, config: fabric.Config, by: fabric.Connection | None = None
    ) -> None:
        self._name = address.name
        self._conf = conf
        self._lost_because = ""
        self._sessions = 0
        self._free = threading.Condition()
        self._pinging = threading.Lock()
        self._wires: list[_Wire] = []
        self.connection = connection(address, conf, config, by)
        self._chain = [link for link in _connection_chain(self.connection) if link is not by]
        try:
            self._open()
        except BaseException:
            self._hang_up()
            raise
        self.transport: paramiko.Transport = self.connection.transport
        every_s = silence.ping_s(len(conf.hosts))
        for link, wire in zip(reversed(self._chain), self._wires, strict=True):
            wire.ping_when_silent(every_s, partial(_ping, link.transport))
            # paramiko ends the handshake again, and its timer, after each message.
            link.transport.packetizer.complete_handshake = _nothing

    def start(self, command: str, deadline: float) -> paramiko.Channel:
        """Start a command in a session of its own; wait if too many are in use. ``release`` closes it."""
        channel = self._session(deadline)
        try:
            channel.fileno()  # from now on it notes arriving output
            channel.exec_command(command)
        except (OSError, EOFError, paramiko.SSHException) as error:
            self.release(channel)
            self.check()
            raise HostError(f"{self._name}: sshd cannot start a command: {error}") from error
        return channel

    def _session(self, deadline: float) -> paramiko.Channel:
        while True:
            with self._free:
                if not self._free.wait_for(lambda: self._sessions < SESSIONS, deadline - time.monotonic()):
                    raise HostError(f"{self._name}: all {SESSIONS} sessions of the connection are in use")
                self._sessions += 1
            try:
                return self.transport.open_session(timeout=max(0.1, deadline - time.monotonic()))
            except paramiko.ChannelException as error:
                self._count_down()
                # sshd may allow fewer sessions, or still count a session that has just ended.
                if time.monotonic() > deadline:
                    raise HostError(f"{self._name}: sshd allows no further session: {error.text}") from error
                time.sleep(_BUSY_S)
            except (paramiko.SSHException, OSError, EOFError) as error:
                self._count_down()
                self.check()
                raise HostError(f"{self._name}: cannot open a session: {_text(error)}") from error

    def release(self, stream: Stream) -> None:
        stream.close()  # type: ignore[attr-defined]
        self._count_down()

    def check(self) -> None:
        """Raise HostLost unless the other end answers."""
        if self.transport.is_active():
            self._wait_for_answer()
        if not self.transport.is_active():
            self._raise_lost()

    @property
    def lost(self) -> bool:
        return not self.transport.is_active()

    def close(self) -> None:
        with self._free:
            self._lost_because = self._lost_because or "it was closed"
        self._hang_up()
        self.transport.join(CONNECT_S)

    def _raise_lost(self) -> NoReturn:
        with self._free:
            self._lost_because = self._lost_because or self._wires[-1].reason
        raise HostLost(f"{self._name}: the connection is lost: {self._lost_because}")

    def _count_down(self) -> None:
        with self._free:
            self._sessions -= 1
            self._free.notify_all()

    def _wait_for_answer(self) -> None:
        """Ping the other end; return when it answers or the connection is lost."""
        with self._pinging, suppress(paramiko.SSHException, OSError, EOFError):
            for wire in self._wires:
                wire.expect()
            self.transport.global_request(_KEEPALIVE, wait=True)

    def _open(self) -> None:
        for link in reversed(self._chain):
            self._prepare(link)
            started = time.monotonic()
            try:
                link.open()
            except HostError as error:
                raise HostLost(f"{self._name}: {error}") from error
            except Exception as error:
                silent = time.monotonic() - started > CONNECT_S - 1
                raise HostLost(f"{self._name}: {_reason(error, link, self._conf, silent)}") from error

    def _prepare(self, link: fabric.Connection) -> None:
        """Set up a connection that refuses unknown hosts, detects a loss and has timeouts."""
        files, keys, name = known_hosts(link, self._conf), link.client.get_host_keys(), _known_name(link)
        first: dict[str, paramiko.PKey] = {}
        for key in (key for file in files for key in known_keys(file, name)):
            first.setdefault(key.get_name(), key)  # of two keys of a kind, the first counts
        for kind, key in first.items():
            keys.add(name, kind, key)
        link.client.set_missing_host_key_policy(_Refuse(link, files[0]))
        link.connect_timeout = CONNECT_S
        link.connect_kwargs["transport_factory"] = self._make_transport
        for wait in ("banner_timeout", "auth_timeout", "channel_timeout"):
            link.connect_kwargs[wait] = CONNECT_S
        if link.gateway is None:
            try:
                link.connect_kwargs["sock"] = _socket(link.host, link.port)
            except OSError as error:
                raise HostLost(f"{self._name}: {_reason(error, link, self._conf)}") from error

    def _make_transport(self, sock: Any, **more: Any) -> paramiko.Transport:
        wire = _Wire(sock)
        self._wires.append(wire)
        transport = paramiko.Transport(wire, **more)
        transport.set_log_channel(_LOG)
        transport.packetizer.start_handshake = _nothing  # a thread for each host; connect_timeout ends it, too
        options = transport.get_security_options()
        options.ciphers = [*_CIPHERS, *(name for name in options.ciphers if name not in _CIPHERS)]
        return transport

    def _hang_up(self) -> None:
        # Not Connection.close(), which leaves connections open whose authentication failed.
        for link in self._chain:
            link.client.close()


def _ping(transport: paramiko.Transport) -> None:
    """Ask for an answer without waiting for it; paramiko can only do one of the two."""
    if transport.clear_to_send.is_set():  # else keys are exchanged, which needs answers anyway
        message = paramiko.Message()
        message.add_byte(cMSG_GLOBAL_REQUEST)
        message.add_string(_KEEPALIVE)
        message.add_boolean(True)
        transport.packetizer.send_message(message)


class Gateway:
    """A gateway to other hosts: one shared connection, open as long as any of them is in use."""

    def __init__(self, address: Address, conf: ClusterConfig, config: fabric.Config) -> None:
        self._address = address
        self._conf = conf
        self._config = config
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._users: set[object] = set()
        self._refused_at, self._refusal = 0.0, ""

    def enter(self, user: object) -> fabric.Connection:
        since = time.monotonic()
        with self._lock:
            if self._link is not None and self._link.lost:
                self._link.close()
                self._link = None
            if self._link is None:
                if self._refused_at > since:  # another thread failed while this one waited
                    raise HostLost(self._refusal)
                try:
                    self._link = Link(self._address, self._conf, self._config)
                except HostError as error:
                    self._refused_at, self._refusal = time.monotonic(), f"gateway {error}"
                    raise HostLost(self._refusal) from error
            self._users.add(user)
            return self._link.connection

    def leave(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users and self._link is not None:
                self._link.close()
                self._link = None


class SSHHost(RemoteHost):
    """A machine at the other end of a permanent SSH connection, which is opened when it is first needed."""

    def __init__(
        self, address: Address, conf: ClusterConfig, config: fabric.Config, gateway: Gateway | None = None
    ) -> None:
        own = config.base_ssh_config.lookup(address.host)
        super().__init__(address.name, own.get("hostname", address.host), conf.python)
        self._address = address
        self._conf = conf
        self._config = config
        self._gateway = gateway

    def close(self) -> None:
        super().close()
        with self._lock:
            if self._gateway is not None:
                self._gateway.leave(self)

    def _open_link(self) -> Link:
        by = self._gateway.enter(self) if self._gateway is not None else None
        return Link(self._address, self._conf, self._config, by)


class _Refuse:
    """A paramiko policy that refuses hosts with an unknown key."""

    def __init__(self, link: fabric.Connection, file: str) -> None:
        self._link = link
        self._file = file

    def missing_host_key(self, _: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        raise HostError(
            f"the host key of {hostname} is unknown: {_kind(key)} {key.fingerprint}. "
            f"If it is the host's key, add it: {_keyscan(self._link, key)} >> {shlex.quote(self._file)}"
        )


class _Connection(fabric.Connection):  # type: ignore[misc, unused-ignore]
    """A connection that leaves the config alone, which the connections of all hosts read in threads.

    Fabric stores an attribute that the class lacks in the config. The config is empty while fabric merges it again.
    """

    __setattr__ = object.__setattr__


class _Client(paramiko.SSHClient):  # type: ignore[misc, unused-ignore]
    """A client that reads each key once for the connections to all hosts."""

    _read: ClassVar[dict[object, paramiko.PKey | paramiko.SSHException]] = {}

    def _key_from_filepath(self, filename: str, klass: type[paramiko.PKey], password: str | None) -> paramiko.PKey:
        files = filename, filename.removesuffix(_CERTIFICATE), f"{filename}{_CERTIFICATE}"
        which = klass, password, *((file, _stamp(file)) for file in files)
        if which not in self._read:
            try:
                self._read[which] = super()._key_from_filepath(filename, klass, password)
            except paramiko.SSHException as error:
                self._read[which] = error
        if isinstance(found := self._read[which], paramiko.SSHException):
            raise found.with_traceback(None)
        return found


def connection(
    address: Address, conf: ClusterConfig, config: fabric.Config, by: fabric.Connection | None = None
) -> fabric.Connection:
    """Return an unopened connection; settings that the cluster does not have are read from ~/.ssh/config."""
    # Never empty: in place of an empty dict, fabric uses the config's, which all connections share, and changes it.
    kwargs: dict[str, Any] = {"look_for_keys": conf.key is None}
    if conf.key is not None:
        kwargs["key_filename"] = conf.key
    link = _Connection(
        address.host,
        user=address.user or conf.user,
        port=address.port or conf.port,
        config=config,
        gateway=by,
        connect_kwargs=kwargs,
    )
    link.client = _Client()
    return link


def known_hosts(link: fabric.Connection, conf: ClusterConfig) -> list[str]:
    """Return the files with known host keys; new keys are added to the first."""
    if conf.known_hosts is not None:
        return [conf.known_hosts]
    own = link.ssh_config.get("userknownhostsfile", "~/.ssh/known_hosts").split()
    return [*(str(Path(file).expanduser()) for file in own), "/etc/ssh/ssh_known_hosts"]


def _known_name(link: fabric.Connection) -> str:
    """Return the name of a host in the files with known host keys."""
    return str(link.host) if int(link.port) == 22 else f"[{link.host}]:{link.port}"


def known_keys(file: str, name: str) -> Iterator[paramiko.PKey]:
    """Yield the keys that a file has of one host. Invalid lines, and a file that does not exist, have none."""
    try:
        by_name, hashed = _known_lines(file, *_stamp(file))
    except OSError:
        return
    text = name.encode()
    own = [line for salt, digest, line in hashed if hmac.digest(salt, text, "sha1") == digest]
    for line in [*by_name.get(name, ()), *own]:
        with suppress(paramiko.SSHException, InvalidHostKey):
            if (entry := HostKeyEntry.from_line(line)) is not None:
                yield entry.key


def _stamp(file: str) -> tuple[int, ...]:
    """Return numbers that differ after a change of a file; none for a file that does not exist."""
    with suppress(OSError):
        status = os.stat(file)  # noqa: PTH116 - asked ten times for each host
        return status.st_ino, status.st_size, status.st_mtime_ns
    return ()


@lru_cache(maxsize=16)
def _known_lines(file: str, *_: int) -> tuple[Mapping[str, Sequence[str]], Sequence[tuple[bytes, bytes, str]]]:
    """Return the lines of a file by the names in them, and those whose name is hashed, with its salt.

    A file is read once for all connections: paramiko's own reader decodes all keys of the file for each connection.
    """
    by_name: dict[str, list[str]] = {}
    hashed = []
    for line in map(str.strip, Path(file).read_text("utf-8", "replace").splitlines()):
        names = line.split(maxsplit=1)[0] if line else "#"
        if names.startswith("|1|"):
            with suppress(ValueError):
                salt, digest = (base64.b64decode(part, validate=True) for part in names.removeprefix("|1|").split("|"))
                hashed.append((salt, digest, line))
        elif not names.startswith("#"):
            for name in names.split(","):
                by_name.setdefault(name, []).append(line)
    return by_name, hashed


def _connection_chain(link: fabric.Connection | str | None) -> Iterator[fabric.Connection]:
    """Yield a connection and its gateways, the nearest last; a ProxyCommand is not included."""
    while isinstance(link, fabric.Connection):
        yield link
        link = link.gateway


def _socket(host: str, port: int) -> socket.socket:
    sock = reach(host, int(port), CONNECT_S)
    sock.settimeout(CONNECT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence.LINK_S * 1000))
    return sock


def _reason(error: Exception, link: fabric.Connection, conf: ClusterConfig, silent: bool = False) -> str:
    """Return why a connection failed, and how to fix it."""
    where = f"{link.host} port {link.port}"
    if isinstance(error, socket.gaierror):
        return f"unknown host name {link.host}: {error.strerror}; correct it, or use the host's address"
    if isinstance(error, ConnectionRefusedError):
        return f"{where}: connection refused; no sshd listens there"
    if isinstance(error, paramiko.BadHostKeyException):
        return _changed_key(error, link, conf)
    if isinstance(error, paramiko.PasswordRequiredException):
        return f"{where}: the key {conf.key or 'in ~/.ssh'} has a passphrase; add it to the SSH agent with ssh-add"
    if isinstance(error, paramiko.AuthenticationException):
        # Paramiko has this class also for a lost connection, without a class or an attribute of its own.
        if any(words in str(error) for words in ("timeout", "transport shut down")):
            return f"{where}: the connection was lost during the login; check the network, then try again"
        return _no_key_accepted(link, conf)
    if isinstance(error, paramiko.ChannelException):
        return f"{where}: the gateway {link.gateway.host} cannot connect to it: {error.text}"
    if isinstance(error, TimeoutError):
        return (
            f"{where}: no answer within {CONNECT_S:g} s; the host is off or disconnected, or a firewall blocks the port"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return f"{where}: {error.strerror}"
    if silent:
        return f"{where}: connected, but no reply within {CONNECT_S:g} s; the host hangs, or the port is not sshd's"
    return f"{where}: {_text(error)}"


def _changed_key(error: paramiko.BadHostKeyException, link: fabric.Connection, conf: ClusterConfig) -> str:
    files = known_hosts(link, conf)
    name = _known_name(link)
    file = next((file for file in files if any(known_keys(file, name))), files[0])
    return (
        f"the host key of {name} differs from the one in {file}: got {_kind(error.key)} {error.key.fingerprint}, "
        f"expected {_kind(error.expected_key)} {error.expected_key.fingerprint}. Either another machine answers, "
        f"or the host was reinstalled; only if it was, remove the old key: ssh-keygen -R {shlex.quote(name)} "
        f"-f {shlex.quote(file)}"
    )


def _no_key_accepted(link: fabric.Connection, conf: ClusterConfig) -> str:
    """Return the message that no key was accepted, with the keys and the command that installs one."""
    named = link.connect_kwargs.get("key_filename") or []
    tried = [*([named] if isinstance(named, str) else named), *(["~/.ssh/id_*"] if conf.key is None else [])]
    return (
        f"{link.host} port {link.port}: no key was accepted for the user {link.user}; tried "
        f"{', '.join(tried)} and the keys of the SSH agent. Install a key on the host: ssh-copy-id "
        f"{'' if conf.key is None else f'-i {shlex.quote(conf.key)} '}-p {link.port} {link.user}@{link.host}"
    )


def _keyscan(link: fabric.Connection, key: paramiko.PKey) -> str:
    gateway = link.gateway
    by = f"ssh -p {gateway.port} {gateway.user}@{gateway.host} " if isinstance(gateway, fabric.Connection) else ""
    return f"{by}ssh-keyscan -t {_kind(key)} -p {link.port} {link.host}"


def _kind(key: paramiko.PKey) -> str:
    name: str = key.get_name()
    return "ecdsa" if name.startswith("ecdsa") else name.removeprefix("ssh-")


def _text(error: BaseException | None) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
