"""The far end of a connection through srun: sent as text and run by the node's own Python (>= 3.8).

It starts programs for the controller and passes their input and output, all over its own stdin and stdout, as sshd does
over a socket; a relay that one srun started on many nodes connects to the controller instead. This file imports nothing
of the project. The command that runs it sets ``stdin`` and sends a request in front of the frames; ``hold`` runs the
batch script of a job that a run requested.

A frame is a line with a channel, a kind and a length, then this number of bytes and a line feed: srun passes on only
complete lines. A controller that sends nothing for ``silence_s`` is considered lost: the programs' input ends, and the
relay stays until all of them have ended, because Slurm kills what is left of a step.
"""

# ruff: noqa: PTH103, PTH108, PTH110, PTH118

import contextlib
import fcntl
import io
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from typing import Any

MARKER = b"\0\1flagperf\1\0"
CHUNK = 1 << 16
WINDOW = 1 << 20  # bytes in each direction of a channel that the other end has not taken yet
UNREACHABLE = "unreachable"
MOST_UNSENT = 1 << 22  # bytes for the controller, until it reads
END_CHECK_S = 0.2
CONNECT_S = 20.0
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # before the controller's first word
NAME_BYTES = 256  # in front of the frames of a relay that connects: the token, and the node's name in this many bytes
LINGER_S = 20.0  # after SIGTERM and the end of the last program: the controller may still fetch logs

# Set by the command that runs this text.
stdin: io.BufferedReader = globals().get("stdin") or sys.stdin.buffer  # type: ignore[assignment]


class RelayedProgram:
    """A program of the controller, with its input that is not written yet."""

    def __init__(self, channel: int, argv: "list[str]") -> None:
        self.channel = channel
        self.process = subprocess.Popen(
            argv, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.input = pipe(self.process.stdin)
        self.outputs = {pipe(self.process.stdout): b"o", pipe(self.process.stderr): b"e"}
        for fd in (self.input, *self.outputs):
            os.set_blocking(fd, False)
        self.unwritten = bytearray()
        self.input_ends = False
        self.window = WINDOW
        self.exit_sent = False

    def close_input(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
            self.process.stdin = None
        self.unwritten.clear()

    def close(self) -> None:
        """Close all pipes: the program reads the end of its input, and cannot write any more."""
        self.close_input()
        for file in (self.process.stdout, self.process.stderr):
            if file is not None:
                file.close()
        self.outputs.clear()


def pipe(file: Any) -> int:
    return int(file.fileno())


class Relay:
    """Pass frames until the controller is gone and all programs have ended."""

    def __init__(self, request: "dict[str, Any]") -> None:
        self.argv = request["argv"]
        self.silence_s = float(request["silence_s"])
        self.programs: dict[int, RelayedProgram] = {}
        self.closed: list[RelayedProgram] = []  # the controller has closed their channels
        self.unsent = bytearray()
        self.received = bytearray()
        self.heard_at = float("inf") if "port" in request else time.monotonic()
        self.lost = False
        self.wake, signals = os.pipe()
        for fd in (self.wake, signals):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(signals, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # At the end of a job Slurm sends SIGTERM, to all processes of a step or only to this one, and later SIGKILL.
        self.terminated = False
        self.busy_at = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.terminate)
        os.set_blocking(0, False)
        os.set_blocking(1, False)

    def serve(self) -> None:
        while self.programs or self.closed or not self.lost:
            if self.programs or self.closed or not self.terminated:
                self.busy_at = time.monotonic()
            elif time.monotonic() - self.busy_at > LINGER_S:
                break
            for fd, events in self.poll():
                self.handle(fd, events)
            self.send_exits()
            self.closed = [program for program in self.closed if program.process.poll() is None]
            if not self.lost and time.monotonic() - self.heard_at > self.silence_s:
                self.lose()

    def terminate(self, *_: Any) -> None:
        """End the programs; the relay stays until it has passed on their last words."""
        self.terminated = True
        for program in (*self.programs.values(), *self.closed):
            program.process.terminate()

    def poll(self) -> "list[tuple[int, int]]":
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        if not self.lost:
            poll.register(0, select.POLLIN)
            poll.register(1, select.POLLOUT if self.unsent else 0)
        for program in self.programs.values():
            if program.unwritten:
                poll.register(program.input, select.POLLOUT)
            if program.window > 0 and len(self.unsent) < MOST_UNSENT:
                for fd in program.outputs:
                    poll.register(fd, select.POLLIN)
        return poll.poll(END_CHECK_S * 1000 if self.lost or self.closed or self.terminated else 1000)

    def handle(self, fd: int, events: int) -> None:
        if fd == self.wake:
            with contextlib.suppress(BlockingIOError):
                os.read(fd, CHUNK)
        elif fd == 0:
            self.read()
        elif fd == 1:
            self.lose() if events & (select.POLLERR | select.POLLHUP) else self.flush()
        else:
            for program in list(self.programs.values()):
                if fd in program.outputs:
                    self.pass_output(program, fd)
                elif fd == program.input and program.process.stdin is not None:
                    self.feed(program)

    def lose(self) -> None:
        """End the input of all programs: their controller is gone."""
        self.lost = True
        for program in self.programs.values():
            program.close()
        self.closed += self.programs.values()
        self.programs.clear()

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
        self.take(data)

    def take(self, data: bytes) -> None:
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
        if kind == b"p":
            self.send(0, b"p")
            return
        if kind == b"s":
            try:
                self.programs[channel] = RelayedProgram(channel, self.argv)
            except OSError as error:
                self.send(channel, b"e", (error.strerror or str(error)).encode())
                self.send(channel, b"x", b"127")
                self.send(channel, b"z")
            return
        program = self.programs.get(channel)
        if program is None:
            return
        if kind == b"i":
            program.unwritten += payload
            self.feed(program)
        elif kind == b"z":
            program.input_ends = True
            self.feed(program)
        elif kind == b"w":
            program.window += int(payload)
        elif kind == b"c":
            program.close()
            self.closed.append(self.programs.pop(channel))

    def feed(self, program: RelayedProgram) -> None:
        """Write as much of a program's input as it takes; close its input at the end."""
        try:
            if program.unwritten and program.process.stdin is not None:
                taken = os.write(program.input, program.unwritten[:CHUNK])
                del program.unwritten[:taken]
                self.send(program.channel, b"w", b"%d" % taken)
        except BlockingIOError:
            return
        except OSError:  # the program does not read any more
            self.send(program.channel, b"w", b"%d" % len(program.unwritten))
            program.unwritten.clear()
        if program.input_ends and not program.unwritten:
            program.close_input()

    # -- to the controller ---------------------------------------------------------------------------------

    def pass_output(self, program: RelayedProgram, fd: int) -> None:
        try:
            data = os.read(fd, min(CHUNK, max(1, program.window)))
        except BlockingIOError:
            return
        if data:
            program.window -= len(data)
            self.send(program.channel, program.outputs[fd], data)
            return
        kind = program.outputs.pop(fd)
        file = program.process.stdout if kind == b"o" else program.process.stderr
        if file is not None:
            file.close()
        if not program.outputs:
            self.send(program.channel, b"z")

    def send_exits(self) -> None:
        for program in self.programs.values():
            code = None if program.exit_sent else program.process.poll()
            if code is not None:
                program.exit_sent = True
                self.send(program.channel, b"x", b"%d" % code)

    def send(self, channel: int, kind: bytes, payload: bytes = b"") -> None:
        self.unsent += b"%d %s %d\n%s\n" % (channel, kind, len(payload), payload)
        self.flush()

    def flush(self) -> None:
        try:
            while self.unsent and not self.lost:
                del self.unsent[: os.write(1, self.unsent[:CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()


# -- the lock that says that a job is in use -------------------------------------------------------------------


def lock_file(job: str) -> str:
    """Return the file that all relays of a job on this node lock; its folder is private to the user."""
    folder = f"/tmp/pytest-flagperf-{os.getuid()}"  # noqa: S108 - private, as checked here
    with contextlib.suppress(FileExistsError):
        os.makedirs(folder, 0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        sys.exit(f"{folder} is not a folder of user {os.getuid()}")
    return os.path.join(folder, f"slurm-{job}.lock")


def lock(path: str, how: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, how)
    except OSError:
        os.close(fd)
        raise
    return fd


def hold(idle_s: float) -> None:
    """Hold the job until no relay has run on this node for ``idle_s``, and none runs on the others."""
    job = os.environ["SLURM_JOB_ID"]
    path = lock_file(job)
    used_at = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while time.monotonic() - used_at < idle_s:
            time.sleep(0.5)
            try:
                os.close(lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError:
                used_at = time.monotonic()
            if time.monotonic() - used_at >= idle_s and has_steps(job):
                used_at = time.monotonic()
    finally:
        os.unlink(path)


def has_steps(job: str) -> bool:
    """Return True if relays run on other nodes, while the link of this one is cut; also if Slurm does not answer."""
    words = ["squeue", "--steps", "--noheader", "--format=%i", f"--jobs={job}"]
    try:
        steps = subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout.split()
    except subprocess.CalledProcessError:
        return True
    except OSError:  # this node has no squeue
        return False
    return any(step.rpartition(b".")[2].isdigit() for step in steps)  # not those of the script and of the node


# -- one srun for many nodes -----------------------------------------------------------------------------------


def connect(port: int, token: str) -> None:
    """Connect to the machine of srun, and use the connection as stdin and stdout."""
    node, address = os.environ["SLURMD_NODENAME"], os.environ["SLURM_LAUNCH_NODE_IPADDR"]
    try:
        connection = socket.create_connection((address, port), CONNECT_S)
    except OSError as error:
        print(f"{UNREACHABLE} {node} {address}:{port}: {error.strerror or error}", flush=True)  # noqa: T201
        sys.exit(0)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.sendall(token.encode() + node.encode().ljust(NAME_BYTES))
    for fd in (0, 1):
        os.dup2(connection.fileno(), fd)
    connection.close()
    # Programs see a step of their node alone.
    one = {"NTASKS": "1", "NPROCS": "1", "PROCID": "0", "NODEID": "0", "STEP_NUM_NODES": "1", "STEP_NUM_TASKS": "1"}
    one.update({"STEP_NODELIST": node, "STEP_TASKS_PER_NODE": "1"})
    os.environ.update({f"SLURM_{name}": value for name, value in one.items()})


def main() -> None:
    for name in ("TMPDIR", "SLURM_CONF"):
        if os.environ.get(name) and not os.path.exists(os.environ[name]):
            del os.environ[name]  # the controller's, which this node does not have
    if sys.argv[1:2] == ["hold"]:
        hold(float(sys.argv[2]))
        return
    request = json.loads(stdin.read(int(stdin.readline())).decode())
    if "port" in request:
        connect(request["port"], request["token"])
    relay = Relay(request)
    if request["own"]:  # a job that a run requested; the descriptor stays open
        lock(lock_file(os.environ["SLURM_JOB_ID"]), fcntl.LOCK_SH)
    facts = {"env": {name: os.environ[name] for name in request["report"] if name in os.environ}}
    relay.unsent += MARKER + json.dumps(facts).encode() + b"\n"
    relay.flush()
    relay.serve()
    os._exit(0)


if __name__ == "__main__":
    main()
