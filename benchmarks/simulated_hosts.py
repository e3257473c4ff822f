"""Many simulated hosts behind one real SSH server, for measurements of the controller.

    python -m benchmarks.simulated_hosts FOLDER CARDS

The first host is real: its process runs on this machine, as sshd would run it. Each other host answers as the first one
did: the same messages, with its own name, its own ranks and its own logs. A simulated host has no process, so that
thousands fit on one machine. Each has an address of its own in 127.1.0.0/16. The folder has the keys; the program
prints its port when it is ready.
"""

import base64
import hashlib
import io
import json
import queue
import re
import shlex
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import paramiko

from flagperf_driver.events import FAILED
from flagperf_driver.node.agent.archive import pack_summary
from flagperf_driver.node.host_process import MARKER
from flagperf_driver.node.logs import summary
from flagperf_driver.node.logs.ranklog import RankLog, read_rank
from tests.lab.lab import Cluster, keygen

REPO = Path(__file__).resolve().parents[1]
ANSWERS = {
    "check": "facts", "connect": "connected", "hello": "hello", "lease": "leased", "release": "released",
    "collect": "chunk",
}  # fmt: skip
"""The answer of the first host that a simulated one gives to each order."""
_NOT_FOR_OTHERS = {"pong", "attached", "end", "busy", *ANSWERS.values()}
_GZIP = "H4sI"  # the beginning of whole logs, in base64
_WAKE_S = 5.0
_RANK = re.compile(rb'("rank": )(\d+)')
_RANK_FILE = re.compile(r"rank(\d+)\.")
Message = dict[str, Any]


def address(number: int) -> str:
    return f"127.1.{number // 250}.{number % 250 + 1}"


class Hosts:
    """All hosts, and the messages of the first one's programs until now."""

    def __init__(self, folder: Path, cards: int) -> None:
        self.cards = cards
        self.first = f"{folder.name}0"
        self.name = folder.name
        self.key = paramiko.Ed25519Key.from_private_key_file(str(folder / "host_key"))
        self.user_key = paramiko.Ed25519Key.from_private_key_file(str(folder / "user_key"))
        self.work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.patterns: dict[tuple[str, int], list[Message]] = defaultdict(list)
        self.programs: dict[tuple[str, int], list[Simulated]] = defaultdict(list)
        self.streams: set[Stream] = set()
        self.counts: dict[tuple[int, str], int] = defaultdict(int)

    def serve(self, listener: socket.socket) -> None:
        for work in (self._work, self._beat):
            threading.Thread(target=work, daemon=True).start()
        while True:
            sock, _ = listener.accept()
            local = sock.getsockname()[0].split(".")
            if local[:2] != ["127", "1"]:
                sock.close()
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = int(local[2]) * 250 + int(local[3]) - 1
            transport = paramiko.Transport(sock)
            transport.add_server_key(self.key)
            # Without an event, paramiko waits for the login here; the next host should not.
            transport.start_server(threading.Event(), Server(self, number))
            transport.sock.settimeout(_WAKE_S)

    def _work(self) -> None:
        """Do everything for the simulated hosts in one thread, one thing after the other."""
        while True:
            self.work.get()()

    def _beat(self) -> None:
        while True:
            time.sleep(1.0)
            self.work.put(self._beat_now)

    def _beat_now(self) -> None:
        for stream in self.streams:
            stream.beat()

    def ordinal(self, number: int, what: str) -> tuple[str, int]:
        """Return the name of a program: the same for the programs of all hosts that correspond."""
        self.counts[number, what] += 1
        return what, self.counts[number, what]

    def heard(self, name: tuple[str, int], message: Message) -> None:
        """Take a message of the first host."""
        if message["type"] == "chunk" and not message["data"].startswith(_GZIP):
            return  # each host sums up its own files
        self.patterns[name].append(message)
        for other in self.programs[name]:
            other.proceed()


class Server(paramiko.ServerInterface):  # type: ignore[misc]
    def __init__(self, hosts: Hosts, number: int) -> None:
        self._hosts = hosts
        self._number = number

    def get_allowed_auths(self, _: str) -> str:
        return "publickey"

    def check_auth_publickey(self, _: str, key: paramiko.PKey) -> int:
        known = key.asbytes() == self._hosts.user_key.asbytes()
        return int(paramiko.AUTH_SUCCESSFUL if known else paramiko.AUTH_FAILED)

    def check_channel_request(self, _kind: str, _number: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        (Stream if self._number else RealStream)(self._hosts, self._number, channel, command.decode())
        return True


class Stream:
    """The controller's process on a host, which is pretended; its input is read when it arrives."""

    def __init__(self, hosts: Hosts, number: int, channel: paramiko.Channel, command: str) -> None:
        self.hosts = hosts
        self.number = number
        self.channel = channel
        self.programs: dict[int, Simulated] = {}
        self._input = b""
        self._prefaced = 0
        self._sent_at = time.monotonic()
        self._beat_s = 1e9
        self.begin(command)
        channel.in_buffer.set_event(Arrival(hosts.work, self._read))

    def begin(self, command: str) -> None:
        assert shlex.split(command)[0] == "exec"
        self.hosts.streams.add(self)

    def beat(self) -> None:
        if time.monotonic() - self._sent_at > self._beat_s:
            self.send(0, b"b")

    def received(self, data: bytes) -> None:
        """Take input as it is."""

    def taken(self, channel: int, kind: bytes, payload: bytes) -> None:
        """Take a frame."""
        if kind == b"s":
            request = json.loads(payload)
            if request["op"] == "put":
                self.send(channel, b"r", json.dumps({"path": f"/code/{request['digest']}"}).encode())
                return
            self.programs[channel] = Simulated(self.hosts, self, channel, name_of(self.hosts, self.number, request))
            self.programs[channel].requested(request)
        elif (program := self.programs.get(channel)) is not None:
            if kind == b"i":
                self.send(channel, b"w", b"%d" % len(payload))
                program.read(payload)
            elif kind in (b"z", b"k"):
                program.end()
            elif kind == b"c":
                program.end()
                del self.programs[channel]

    def send(self, channel: int, kind: bytes, payload: bytes = b"") -> None:
        self.send_raw(b"%d %s %d\n%s\n" % (channel, kind, len(payload), payload))

    def send_raw(self, data: bytes) -> None:
        self._sent_at = time.monotonic()
        with suppress(OSError):
            self.channel.sendall(data)

    def left(self) -> None:
        """The controller has closed the stream."""
        self.hosts.streams.discard(self)
        self.channel.close()

    def greet(self, request: Message) -> None:
        self._beat_s = request["beat_s"]
        self.send_raw(MARKER + b'{"env": {}, "address": ""}\n')

    def _read(self) -> None:
        while self.channel.recv_ready():
            data = self.channel.recv(1 << 18)
            self.received(data)
            self._input += data
        while self._prefaced < 2:  # the text that runs on a host, then its request, each behind its length
            size, newline, rest = self._input.partition(b"\n")
            if not newline or len(rest) < int(size):
                break
            self._prefaced += 1
            if self._prefaced == 2:
                self.greet(json.loads(rest[: int(size)]))
            self._input = rest[int(size) :]
        if self._prefaced == 2:
            frames, self._input = split_frames(self._input)
            for frame in frames:
                self.taken(*frame)
        if self.channel.eof_received or self.channel.closed:
            self.left()


def split_frames(data: bytes) -> tuple[list[tuple[int, bytes, bytes]], bytes]:
    """Return the complete frames, and the rest."""
    frames: list[tuple[int, bytes, bytes]] = []
    while True:
        line, newline, rest = data.partition(b"\n")
        if not newline:
            return frames, data
        channel, kind, size = line.split()
        if len(rest) <= int(size):
            return frames, data
        frames.append((int(channel), kind, rest[: int(size)]))
        data = rest[int(size) + 1 :]


def name_of(hosts: Hosts, number: int, request: Message) -> tuple[str, int]:
    return hosts.ordinal(number, request["argv"][-1])


class Arrival:
    """What paramiko sets when data or the end of a stream has arrived."""

    def __init__(self, work: queue.SimpleQueue[Callable[[], None]], read: Callable[[], None]) -> None:
        self._work = work
        self._read_it = read

    def set(self) -> None:
        self._work.put(self._read_it)

    def clear(self) -> None:
        pass


class RealStream(Stream):
    """The process on the first host: one of this machine."""

    def begin(self, command: str) -> None:
        self._names: dict[int, tuple[str, int]] = {}
        self._lines: dict[int, bytes] = defaultdict(bytes)
        self._to_process: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(["sh", "-c", command], stdin=pipe, stdout=pipe)
        for work in (self._copy_output, self._feed):
            threading.Thread(target=work, daemon=True).start()

    def received(self, data: bytes) -> None:
        self._to_process.put(data)

    def taken(self, channel: int, kind: bytes, payload: bytes) -> None:
        if kind == b"s" and b'"op": "put"' not in payload[:20]:
            self._names[channel] = name_of(self.hosts, self.number, json.loads(payload))

    def greet(self, request: Message) -> None:
        """The process does that."""

    def left(self) -> None:
        self._to_process.put(b"")

    def _feed(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(OSError):
            while data := self._to_process.get():
                stdin.write(data)
                stdin.flush()
            stdin.close()

    def _copy_output(self) -> None:
        assert self._process.stdout is not None
        rest, greeted = b"", False
        with suppress(OSError):
            while data := self._process.stdout.read1(1 << 18):  # type: ignore[attr-defined]
                self.channel.sendall(data)
                rest += data
                if not greeted:
                    greeted, rest = True, rest.partition(b"\n")[2]
                frames, rest = split_frames(rest)
                for channel, kind, payload in frames:
                    if kind == b"o":
                        *lines, self._lines[channel] = (self._lines[channel] + payload).split(b"\n")
                        for line in lines:
                            self._heard(channel, line)
        self._process.wait()
        with suppress(OSError, EOFError, paramiko.SSHException):
            self.channel.close()

    def _heard(self, channel: int, line: bytes) -> None:
        with suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict) and "type" in message:
                self.hosts.work.put(lambda: self.hosts.heard(self._names.get(channel, ("", 0)), message))


class Simulated:
    """A program of a simulated host: repeats the messages of the corresponding program of the first host."""

    def __init__(self, hosts: Hosts, stream: Stream, channel: int, name: tuple[str, int]) -> None:
        self.hosts = hosts
        self.name = name
        self.number = stream.number
        self._stream = stream
        self._channel = channel
        self._input = b""
        self._over = False
        self._said = 0  # how many of the first host's messages were dealt with
        # Answers that the controller waits for, the logs' with what a summary of them is requested for.
        self._waiting: list[tuple[str, Any]] = []
        self._answers: dict[str, Message] = {}
        self._started = False

    def requested(self, request: Message) -> None:
        self._stream.send(self._channel, b"r", b'{"pid": 1}')
        if request["op"] != "open":
            self.end()
            return
        self.hosts.programs[self.name].append(self)
        self.proceed()

    def read(self, data: bytes) -> None:
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            self.ordered(json.loads(line))

    def end(self) -> None:
        if not self._over:
            self._over = True
            self._stream.send(self._channel, b"z")
            self._stream.send(self._channel, b"x", b"0")

    @property
    def host(self) -> str:
        return f"{self.hosts.name}{self.number}"

    def ordered(self, order: Message) -> None:
        kind = order.get("op")
        if kind == "ping":
            self._send({"type": "pong", "t": order.get("t"), "clock_ms": time.time() * 1000})
        elif kind == "leave":
            self._send({"type": "end"})
            self.end()
        elif kind in ANSWERS:
            self._waiting.append((ANSWERS[kind], order.get("summary")))
        elif kind != "stop":
            self._started = True  # the order to start the ranks, or a request to a module
        self.proceed()

    def proceed(self) -> None:
        """Say what can be said by now."""
        if self._over:
            return
        messages = self.hosts.patterns[self.name]
        while self._said < len(messages):
            message = messages[self._said]
            kind = message["type"]
            if kind in _NOT_FOR_OTHERS:
                self._answers[kind] = message
            elif not self._started:
                break
            elif kind != "perflog" or message["event"] == FAILED:  # the others are sent of rank 0 only
                self._send(self._own(message))
            self._said += 1
        while self._waiting and self._waiting[0][0] in self._answers:
            kind, request = self._waiting.pop(0)
            self._send(self._own(self._answers[kind], request))

    def _own(self, message: Message, request: Mapping[str, Any] | None = None) -> Message:
        """Return a message of the first host as this host's."""
        kind, first = message["type"], self.number * self.hosts.cards
        message = dict(message)
        if kind == "hello":
            message["log_dir"] = message["log_dir"].replace(self.hosts.first, self.host)
        elif kind == "chunk":
            files = own_files(message["data"], first)
            return {**message, **_packed(_tar(files) if request is None else summed_up(files, request))}
        elif kind == "over":
            message["ended_well"] = [rank + first for rank in message["ended_well"]]
        if isinstance(message.get("rank"), int):
            message["rank"] += first
        for name in ("ranks", "slow"):
            if isinstance(message.get(name), dict):
                message[name] = {str(int(rank) + first): value for rank, value in message[name].items()}
        return message

    def _send(self, message: Mapping[str, Any]) -> None:
        self._stream.send(self._channel, b"o", json.dumps(message).encode() + b"\n")


def own_files(data: str, first: int) -> dict[str, bytes]:
    """Return the files of the first host as those of the host whose first rank is ``first``."""
    files = {}
    for name, content in _files(data):
        if name == "milestones.json":
            body = json.loads(content)
            body["ranks"] = {str(int(rank) + first): its for rank, its in body["ranks"].items()}
            content = json.dumps(body).encode()
        elif name.startswith("rank"):
            content = _RANK.sub(lambda found: found[1] + b"%d" % (int(found[2]) + first), content)
        files[_RANK_FILE.sub(lambda found: f"rank{int(found[1]) + first}.", name)] = content
    return files


def summed_up(files: Mapping[str, bytes], request: Mapping[str, Any]) -> bytes:
    """Return what a host sends when the controller asks for a summary of these files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        with Path(folder, "packed").open("w+b") as packed:
            pack_summary(Path(folder), packed.fileno(), request)
            packed.seek(0)
            return packed.read()


def of_the_first(cards: int) -> Callable[..., RankLog]:
    """Return ``read_rank`` that reads logs of one host: those of the others differ in their rank alone."""
    logs: dict[int, RankLog] = {}

    def read(path: Path, rank: int, *rest: Any) -> RankLog:
        if rank % cards not in logs:
            logs[rank % cards] = read_rank(path, rank, *rest)
        return replace(logs[rank % cards], rank=rank, path=path, bytes=path.stat().st_size)

    return read


def _tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as target:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            target.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _packed(raw: bytes) -> Message:
    return {
        "data": base64.b64encode(raw).decode(),
        "size": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
    }


@cache  # of all hosts, the first one sends files
def _files(data: str) -> tuple[tuple[str, bytes], ...]:
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(data))) as archive:
        found = ((entry.name, archive.extractfile(entry)) for entry in archive)
        return tuple((name, file.read()) for name, file in found if file is not None)


class SimulatedHosts:
    """Hosts of another process, from the start of its server to its end."""

    def __init__(self, folder: Path, count: int, cards: int, name: str = "s") -> None:
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        for key in ("host_key", "user_key"):
            keygen(self.folder / key)
        words = [sys.executable, "-m", "benchmarks.simulated_hosts", str(self.folder), str(cards)]
        self._process = subprocess.Popen(words, cwd=REPO, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self._count = count
        key = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        lines = (f"[{address(number)}]:{self.port} {key}\n" for number in range(count))
        (self.folder / "known_hosts").write_text("".join(lines))

    @property
    def settings(self) -> Cluster:
        named = [f"{self.folder.name}{number}={address(number)}" for number in range(self._count)]
        return Cluster(tuple(named), "root", self.port, str(self.folder / "user_key"), str(self.folder / "known_hosts"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.terminate()
        self._process.wait()


def main() -> None:
    folder, cards = Path(sys.argv[1]), int(sys.argv[2])
    summary.read_rank = of_the_first(cards)  # type: ignore[attr-defined]
    # On all addresses, of which the server accepts those of its hosts.
    with socket.create_server(("0.0.0.0", 0), backlog=1024) as listener:
        print(listener.getsockname()[1], flush=True)
        Hosts(folder, cards).serve(listener)


if __name__ == "__main__":
    main()
