"""Hosts over SSH: a permanent connection by fabric with one channel, and messages if it cannot be opened.

paramiko waits forever on a connection that is cut or whose host hangs: stream.py finds that.
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import fabric
import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from flagperf_driver.ports import reach

from . import HostError, HostLost, silence
from .cluster import Address, ClusterConfig, parse_host
from .stream import HostStream
from .stream_host import StreamHost

CONNECT_S = 10.0
_END_S = 5.0
# How long paramiko's thread waits for data before it looks around; its own 0.1 s keep a core busy with 1,000 hosts.
_LOOK_S = 2.0
_READ_BYTES = 1 << 18
_STDERR_BYTES = 8192
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


class SSHCarrier:
    """A connection whose only channel runs the host's Python; a lost connection is not reopened."""

    by = "ssh"
    greeting_s = 60.0

    def __init__(self, link: Link, command: Sequence[str]) -> None:
        self._link = link
        self._errors = bytearray()
        try:
            self._channel = link.transport.open_session(timeout=CONNECT_S)
            self._channel.exec_command("exec " + shlex.join(command))
            self._channel.fileno()  # from now on it notes arriving output
        except (OSError, EOFError, paramiko.SSHException) as error:
            link.close()
            raise HostLost(f"{link.name}: sshd cannot start a command: {_text(error)}") from error

    def fileno(self) -> int:
        return int(self._channel.fileno())

    def read(self) -> bytes | None:
        over = self._channel.eof_received or self._channel.closed  # read before the data that arrived until then
        while self._channel.recv_stderr_ready():
            self._errors += self._channel.recv_stderr(_READ_BYTES)
            del self._errors[:-_STDERR_BYTES]
        if self._channel.recv_ready():
            return bytes(self._channel.recv(_READ_BYTES))
        return b"" if over else None

    def write(self, data: bytes) -> None:
        try:
            while data:
                sent = self._channel.send(data)
                if not sent:
                    raise OSError("it was closed")
                data = data[sent:]
        except (EOFError, paramiko.SSHException) as error:
            raise OSError(_text(error)) from error

    def code(self) -> int | None:
        self._channel.status_event.wait(_END_S)
        code = self._channel.exit_status
        return code if code >= 0 else None

    def last_words(self) -> str:
        if self.code() is None:
            return self._link.why_lost() or "the other end closed it"
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def close(self) -> None:
        self._link.close()
        self._channel.close()  # its descriptors; first, it would wait for a host that hangs


class Link:
    """An open connection over SSH, and the connections to it through a gateway."""

    def __init__(
        self, address: Address, conf: ClusterConfig, config: fabric.Config, by: fabric.Connection | None = None
    ) -> None:
        self.name = address.name
        self._conf = conf
        self.connection = connection(address, conf, config, by)
        self._chain = [link for link in _connection_chain(self.connection) if link is not by]
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        self.transport: paramiko.Transport = self.connection.transport
        for link in self._chain:
            link.transport.sock.settimeout(_LOOK_S)

    def answers(self) -> bool:
        """Return True if the other end opens a channel."""
        try:
            self.transport.open_session(timeout=CONNECT_S).close()
        except (OSError, EOFError, paramiko.SSHException):
            return False
        return True

    def why_lost(self) -> str:
        error = self.transport.get_exception()
        return "" if error is None or isinstance(error, EOFError) else _text(error)

    def close(self) -> None:
        for link in self._chain:
            if link.transport is not None:
                with suppress(OSError, EOFError):  # the thread that reads it ends at once, not when its timeout is over
                    link.transport.sock.shutdown(socket.SHUT_RDWR)
            # Not Connection.close(), which leaves connections open whose authentication failed.
            link.client.close()

    def _open(self) -> None:
        for link in reversed(self._chain):
            self._prepare(link)
            started = time.monotonic()
            try:
                link.open()
            except HostError as error:
                raise HostLost(f"{self.name}: {error}") from error
            except Exception as error:
                silent = time.monotonic() - started > CONNECT_S - 1
                raise HostLost(f"{self.name}: {_reason(error, link, self._conf, silent)}") from error

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
        link.connect_kwargs["transport_factory"] = _transport
        for wait in ("banner_timeout", "auth_timeout", "channel_timeout"):
            link.connect_kwargs[wait] = CONNECT_S
        if link.gateway is None:
            try:
                link.connect_kwargs["sock"] = _socket(link.host, link.port)
            except OSError as error:
                raise HostLost(f"{self.name}: {_reason(error, link, self._conf)}") from error


def _transport(sock: Any, **more: Any) -> paramiko.Transport:
    transport = paramiko.Transport(sock, **more)
    transport.set_log_channel(_LOG)
    options = transport.get_security_options()
    options.ciphers = [*_CIPHERS, *(name for name in options.ciphers if name not in _CIPHERS)]
    return transport


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
            if self._link is not None and not self._link.transport.is_active():
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

    def check(self) -> None:
        """Close a connection that does not answer: the next user opens it again."""
        with self._lock:
            if self._link is not None and not self._link.answers():
                self._link.close()
                self._link = None

    def leave(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users and self._link is not None:
                self._link.close()
                self._link = None


class SSHHost(StreamHost):
    """A machine at the other end of a permanent SSH connection, which is opened when it is first needed."""

    def __init__(
        self, address: Address, conf: ClusterConfig, config: fabric.Config, gateway: Gateway | None = None
    ) -> None:
        own = config.base_ssh_config.lookup(address.host)
        super().__init__(
            address.name, own.get("hostname", address.host), conf.python, beat_s=silence.ping_s(len(conf.hosts))
        )
        self._address = address
        self._conf = conf
        self._config = config
        self._gateway = gateway

    def close(self) -> None:
        super().close()
        with self._lock:
            if self._gateway is not None:
                self._gateway.leave(self)

    def _open_stream(self) -> HostStream:
        if self._gateway is None:
            return self._stream_over(SSHCarrier(Link(self._address, self._conf, self._config), self._command))
        by = self._gateway.enter(self)
        try:
            return self._stream_over(SSHCarrier(Link(self._address, self._conf, self._config, by), self._command))
        except HostError:
            self._gateway.check()
            raise


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


def connection(
    address: Address, conf: ClusterConfig, config: fabric.Config, by: fabric.Connection | None = None
) -> fabric.Connection:
    """Return an unopened connection; settings that the cluster does not have are read from ~/.ssh/config."""
    # Never empty: in place of an empty dict, fabric uses the config's, which all connections share, and changes it.
    kwargs: dict[str, Any] = {"look_for_keys": conf.key is None}
    if conf.key is not None:
        kwargs["key_filename"] = conf.key
    return _Connection(
        address.host,
        user=address.user or conf.user,
        port=address.port or conf.port,
        config=config,
        gateway=by,
        connect_kwargs=kwargs,
    )


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
    """Yield the keys that a file has of one host, the first of each kind; a file that does not exist has none."""
    try:
        found = _known(file, *_stamp(file)).lookup(name)
    except OSError:
        return
    yield from (found or {}).values()


def _stamp(file: str) -> tuple[int, ...]:
    """Return numbers that differ after a change of a file; none for a file that does not exist."""
    with suppress(OSError):
        status = os.stat(file)  # noqa: PTH116 - asked ten times for each host
        return status.st_ino, status.st_size, status.st_mtime_ns
    return ()


@lru_cache(maxsize=16)
def _known(file: str, *_: int) -> paramiko.HostKeys:
    """Return the keys of a file, without its invalid lines; it is read once for all connections."""
    keys = paramiko.HostKeys()
    for line in Path(file).read_text("utf-8", "replace").splitlines():
        with suppress(paramiko.SSHException, InvalidHostKey):
            if line.strip() and not line.startswith("#") and (entry := HostKeyEntry.from_line(line)) is not None:
                for name in entry.hostnames or ():
                    keys.add(name, entry.key.get_name(), entry.key)
    return keys


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
