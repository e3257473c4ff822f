"""The process of the controller on a host: sent as text and run by the host's own Python (>= 3.8).

One connection carries all that the controller does on the host: it starts programs, connects to sockets, and passes
their input and output, over this process's stdin and stdout. It imports nothing of the project. The command that runs
this text sets ``stdin``, which holds a request in front of the frames.

A frame is a line with a channel, a kind and a length, then this number of bytes and a line feed: srun passes on only
complete lines. Each side sends a sign of life when it has sent nothing else for ``beat_s``. A controller that sends
nothing for ``silence_s`` is lost: what ``run`` started is killed, and the input of all other programs ends. With
``stays`` this process then waits for the end of these programs, because Slurm kills what is left of a step.
"""

import contextlib
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MARKER = b"\0\1flagperf\1\0"  # before the greeting: a login shell or a prolog may print text before it
CHUNK = 1 << 16
WINDOW = 1 << 20  # bytes of a channel's input or output that the other end has not taken yet
MOST_UNSENT = 1 << 22  # bytes for the controller, until it reads
LINGER_S = 20.0  # after SIGTERM and the end of the last program: the controller may still fetch logs
CONNECT_TIME = struct.pack("ll", 5, 0)  # of the kernel: with a timeout of Python a full queue is an error at once
EXIT_CHECK_S = 0.2

# Set by the command that runs this text.
stdin: Any = globals().get("stdin")


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def environment(request: "dict[str, Any]") -> "dict[bytes, bytes]":
    """Return the variables of this process and of the request; with a folder, the request has them all."""
    own = {} if "folder" in request else os.environb
    return {**own, **{raw(name): raw(value) for name, value in request["env"].items()}}


def put(request: "dict[str, Any]") -> "dict[str, Any]":
    """Return the folder of the code with a digest; unpack the code that comes with the request, if it comes."""
    root = own_cache(environment(request)) / "code" / request["digest"]
    if not root.is_dir():
        if "archive" not in request:
            return {}
        unpack(root, request["archive"])
    return {"path": str(root)}


def own_cache(env: "dict[bytes, bytes]") -> Path:
    """Create the cache; refuse one that another user could change, since its code and environments are run here."""
    own, shared = (os.fsdecode(env.get(name, b"")) for name in (b"FLAGPERF_CACHE", b"XDG_CACHE_HOME"))
    root = Path(own or Path(shared or Path.home() / ".cache", "pytest-flagperf")).absolute()
    another = "set FLAGPERF_CACHE to a folder of your own"
    root.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o755)
    status = root.stat()
    if status.st_uid not in (0, os.getuid()):
        raise ValueError(f"the cache {root} belongs to user {status.st_uid}, not to {os.getuid()}: {another}")
    if status.st_mode & 0o022:
        raise ValueError(f"other users can write to the cache {root}: run chmod go-w {root}, or {another}")
    return root


def unpack(root: Path, archive: str) -> None:
    """Unpack the code completely or not at all; of two processes that do this at once, one succeeds."""
    import base64
    import shutil
    import tarfile
    import tempfile
    import zlib

    raw = zlib.decompress(base64.b64decode(archive))
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="." + root.name[:8], dir=str(root.parent)))
    try:
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            # Pythons that support filters warn if no filter is set.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(str(temporary))  # noqa: S202 - the harness made the archive
        temporary.chmod(0o755)  # readable by the user of a container
        try:
            temporary.rename(root)
        except OSError:
            if not root.is_dir():
                raise
    finally:
        shutil.rmtree(str(temporary), ignore_errors=True)


class StartedProgram:
    """A program or a connection to a socket, with its input that is not written yet."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.process: Any = None
        self.input = -1
        self.outputs: dict[int, bytes] = {}
        self.unwritten = bytearray()
        self.input_ends = self.exit_sent = self.is_run = False
        self.window = WINDOW

    def start(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Start a program in a session of its own."""
        self.process = subprocess.Popen(
            [raw(word) for word in request["argv"]],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(request),
            cwd=request.get("folder"),
            start_new_session=True,
        )
        self.is_run = request["op"] == "run"
        files = [self.process.stdin, self.process.stdout, self.process.stderr]
        self.input, out, err = (os.dup(file.fileno()) for file in files)
        for file in files:
            file.close()
        self.outputs = {out: b"o", err: b"e"}
        return {"pid": self.process.pid}

    def connect(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Connect to a Unix socket, whose path may be longer than such a path can be."""
        path = Path(request["path"])
        made, opened = socket.socket(socket.AF_UNIX), os.open(str(path.parent), os.O_RDONLY | os.O_DIRECTORY)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # one would end the wait without error
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, CONNECT_TIME)
            made.connect(f"/proc/self/fd/{opened}/{path.name}")
            self.input, output = os.dup(made.fileno()), made.detach()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(opened)
            made.close()
        self.outputs = {output: b"o"}
        return {}

    def end_input(self) -> None:
        self.unwritten.clear()
        if self.input >= 0:
            if self.process is None:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.input)) as end:
                    end.shutdown(socket.SHUT_WR)
            os.close(self.input)
            self.input = -1

    def close(self) -> None:
        """Close everything: the program reads the end of its input, and cannot write any more."""
        self.end_input()
        for fd in self.outputs:
            os.close(fd)
        self.outputs.clear()

    def kill(self) -> None:
        """Kill the program and what it started in its session's process group."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def code(self) -> "int | None":
        """Return how it ended, None before its end; a socket has ended when it is read to its end."""
        if self.process is None:
            return None if self.outputs else 0
        code = self.process.poll()
        return code if code is None else int(code)


class HostProcess:
    """Pass frames until the controller is gone."""

    def __init__(self, request: "dict[str, Any]") -> None:
        self.beat_s = float(request["beat_s"])
        self.silence_s = float(request["silence_s"])
        self.stays = bool(request.get("stays"))
        self.started: dict[int, StartedProgram] = {}
        self.closed: list[StartedProgram] = []  # the controller has closed their channels
        self.unsent = bytearray()
        self.received = bytearray()
        self.heard_at = float("inf") if request.get("port") else time.monotonic()
        self.sent_at = time.monotonic()
        self.lost = False
        self.wake, signals = os.pipe()
        for fd in (self.wake, signals, 0, 1):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(signals, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # At the end of a job Slurm sends SIGTERM, to all processes of a step or only to this one, and later SIGKILL.
        self.terminated = False
        self.busy_at = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.terminate)

    def serve(self) -> None:
        while not self.lost or (self.stays and (self.started or self.closed)):
            now = time.monotonic()
            if self.started or self.closed or not self.terminated:
                self.busy_at = now
            elif now - self.busy_at > LINGER_S:
                break
            for fd, events in self.poll():
                self.handle(fd, events)
            self.send_exits()
            self.closed = [one for one in self.closed if one.code() is None]
            if not self.lost:
                self.look_at_the_clock()

    def look_at_the_clock(self) -> None:
        now = time.monotonic()
        if now - self.heard_at > self.silence_s:
            self.lose()
        elif now - self.sent_at > self.beat_s and not self.unsent:
            self.send(0, b"b")

    def terminate(self, *_: Any) -> None:
        """End the programs; this process stays until it has passed on their last words."""
        self.terminated = True
        for one in [*self.started.values(), *self.closed]:
            if one.process is not None:
                one.process.terminate()

    def poll(self) -> "list[tuple[int, int]]":
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        if not self.lost:
            poll.register(0, select.POLLIN)
            poll.register(1, select.POLLOUT if self.unsent else 0)
        for one in self.started.values():
            if one.unwritten:
                poll.register(one.input, select.POLLOUT)
            for fd, kind in one.outputs.items():
                if len(self.unsent) < MOST_UNSENT and (one.window > 0 or kind == b"e"):
                    poll.register(fd, select.POLLIN)
        return poll.poll(
            (EXIT_CHECK_S if self.lost or self.closed or self.terminated else min(self.beat_s / 4, 3600.0)) * 1000
        )

    def handle(self, fd: int, events: int) -> None:
        if fd == self.wake:
            with contextlib.suppress(BlockingIOError):
                os.read(fd, CHUNK)
        elif fd == 0:
            self.read()
        elif fd == 1:
            self.lose() if events & (select.POLLERR | select.POLLHUP) else self.flush()
        else:
            for one in list(self.started.values()):
                if fd in one.outputs:
                    self.pass_output(one, fd)
                elif fd == one.input:
                    self.feed(one)

    def lose(self) -> None:
        """The controller is gone: kill what it waited for, and end the input of everything else."""
        self.lost = True
        for one in self.started.values():
            if one.is_run:
                one.kill()
            one.close()
        self.closed += self.started.values()
        self.started.clear()

    # -- from the controller -------------------------------------------------------------------------------

    def read(self) -> None:
        try:
            data = os.read(0, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # the connection was reset
            data = b""
        if not data:
            self.lose()
            return
        self.heard_at = time.monotonic()
        self.received += data
        while True:
            line, end, _ = self.received.partition(b"\n")
            if not end:
                return
            channel, kind, length = line.split()
            start, size = len(line) + 1, int(length)
            if len(self.received) < start + size + 1:
                return
            payload = bytes(self.received[start : start + size])
            del self.received[: start + size + 1]
            self.obey(int(channel), bytes(kind), payload)

    def obey(self, channel: int, kind: bytes, payload: bytes) -> None:
        if kind == b"s":
            self.start(channel, json.loads(payload.decode()))
            return
        one = self.started.get(channel)
        if one is None:
            return
        if kind == b"i":
            one.unwritten += payload
            self.feed(one)
        elif kind == b"z":
            one.input_ends = True
            self.feed(one)
        elif kind == b"w":
            one.window += int(payload)
        elif kind == b"k":
            one.kill()
        elif kind == b"c":
            if one.is_run:
                one.kill()
            one.close()
            self.closed.append(self.started.pop(channel))

    def start(self, channel: int, request: "dict[str, Any]") -> None:
        one, op = StartedProgram(channel), request["op"]
        try:
            answer = put(request) if op == "put" else one.connect(request) if op == "connect" else one.start(request)
        except Exception as error:
            answer = {"error": getattr(error, "strerror", None) or str(error) or type(error).__name__}
        if one.outputs:
            for fd in (one.input, *one.outputs):
                os.set_blocking(fd, False)
            self.started[channel] = one
        self.send(channel, b"r", json.dumps(answer).encode())

    def feed(self, one: StartedProgram) -> None:
        """Write as much of the input as is taken; close it at the end."""
        try:
            if one.unwritten and one.input >= 0:
                taken = os.write(one.input, one.unwritten[:CHUNK])
                del one.unwritten[:taken]
                self.send(one.channel, b"w", b"%d" % taken)
        except BlockingIOError:
            return
        except OSError:  # the program does not read any more
            self.send(one.channel, b"w", b"%d" % len(one.unwritten))
            one.unwritten.clear()
        if one.input_ends and not one.unwritten:
            one.end_input()

    # -- to the controller ---------------------------------------------------------------------------------

    def pass_output(self, one: StartedProgram, fd: int) -> None:
        kind = one.outputs[fd]
        most = CHUNK if kind == b"e" else min(CHUNK, one.window)
        if most <= 0:
            return
        try:
            data = os.read(fd, most)
        except BlockingIOError:
            return
        except OSError:  # a socket whose other end was reset
            data = b""
        if data:
            one.window -= len(data) if kind == b"o" else 0
            self.send(one.channel, kind, data)
            return
        del one.outputs[fd]
        os.close(fd)
        if not one.outputs:
            self.send(one.channel, b"z")

    def send_exits(self) -> None:
        for one in self.started.values():
            code = None if one.exit_sent else one.code()
            if code is not None:
                for fd in list(one.outputs):  # its last words, of which a pipe holds 64 KiB, come before its exit code
                    self.pass_output(one, fd)
                one.exit_sent = True
                self.send(one.channel, b"x", b"%d" % code)

    def send(self, channel: int, kind: bytes, payload: bytes = b"") -> None:
        self.unsent += b"%d %s %d\n%s\n" % (channel, kind, len(payload), payload)
        self.flush()

    def flush(self) -> None:
        try:
            while self.unsent and not self.lost:
                del self.unsent[: os.write(1, self.unsent[:CHUNK])]
                self.sent_at = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()


def greet(request: "dict[str, Any]") -> HostProcess:
    """Return the process, which has sent its greeting: the variables and the address that the controller asks for."""
    made = HostProcess(request)
    address = ""
    if request.get("address"):
        with contextlib.suppress(OSError):
            address = socket.gethostbyname(socket.gethostname())
    env = {name: os.environ[name] for name in request.get("report", ()) if name in os.environ}
    made.unsent += MARKER + json.dumps({"env": env, "address": address}).encode() + b"\n"
    made.flush()
    return made


def main() -> None:
    if sys.version_info < (3, 8):  # noqa: UP036 - this file checks the version
        old = {"old": "%d.%d" % sys.version_info[:2]}  # noqa: UP031 - as above
        os.write(1, MARKER + json.dumps(old).encode() + b"\n")
        return
    greet(json.loads(stdin.read(int(stdin.readline())).decode())).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
