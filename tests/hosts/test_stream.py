"""The stream to a host, reached by a command on this machine: passed data, many programs, losses, and its end."""

from __future__ import annotations

import os
import random
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from flagperf_driver.node.host_process import MARKER
from pytest_flagperf.hosts import Channel, HostError, HostLost, silence, stream
from pytest_flagperf.hosts.carriers import CommandCarrier
from pytest_flagperf.hosts.stream_host import StreamHost
from pytest_flagperf_slurm.socket_carrier import SocketCarrier
from tests.helpers.waiting import until

AWKWARD = [
    "", " ", "a b", "two\nlines\n", "'", '"', "$(touch /tmp/pwned)", "`touch /tmp/pwned`", "; touch /tmp/pwned", "\\",
    "!!", "*", "~", "\t\x1b[31m", "\udcff\udc80 no UTF-8", "\N{GREEK SMALL LETTER ALPHA}", "-n", "%s", "x" * 100_000,
]  # fmt: skip


class ByCommand(StreamHost):
    """The tests' own machine, reached by a command in front of its Python."""

    def __init__(self, *before: str, **request: object) -> None:
        super().__init__("h1", "127.0.0.1", sys.executable, beat_s=silence.PING_S)
        self.before = before
        self.request = request
        self.commands: list[subprocess.Popen[bytes]] = []

    def _open_stream(self) -> stream.HostStream:
        carrier = CommandCarrier("h1", [*self.before, *self._command], dict(os.environ))
        self.commands.append(carrier.process)
        return self._stream_over(carrier, **self.request)


@pytest.fixture
def host() -> Iterator[ByCommand]:
    made = ByCommand(report=["HOME", "NO_SUCH"])
    yield made
    made.close()


def test_words_variables_input_output_and_codes_are_passed_unchanged(host: ByCommand, tmp_path: Path) -> None:
    show = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    done = host.run([sys.executable, "-c", show, *AWKWARD], timeout_s=30)
    assert done.raw.split(b"\0") == [os.fsencode(word) for word in AWKWARD]
    env = {f"V{number}": value for number, value in enumerate(AWKWARD)}
    done = host.run(["env", "-0"], timeout_s=30, env={**env, "HOME": "/elsewhere"})
    got = dict(entry.split(b"=", 1) for entry in done.raw.split(b"\0") if entry)
    assert {name: got[name.encode()] for name in env} == {name: os.fsencode(value) for name, value in env.items()}
    assert (got[b"HOME"], got[b"PATH"]) == (b"/elsewhere", os.fsencode(os.environ["PATH"]))
    data = random.Random(1).randbytes(3_000_001)
    done = host.run(["sh", "-c", "cat; printf 'oh\\n' >&2; exit 137"], timeout_s=30, stdin=data)
    assert (done.code, done.raw == data, done.err) == (137, True, "oh\n")
    assert host.run(["sh", "-c", "kill -9 $$"], timeout_s=30).code == -signal.SIGKILL
    assert host.run(["true"], timeout_s=30, stdin=bytes(5_000_000)).code == 0
    done = host.run(["sh", "-c", "grep SigIgn /proc/$$/status"], timeout_s=30)
    assert int(done.out.split()[1], 16) & 1 << signal.SIGPIPE - 1 == 0
    (tmp_path / "text").touch()
    for program, why in (("nosuchprogram", "No such file or directory"), (f"{tmp_path}/text", "Permission denied")):
        with pytest.raises(HostError, match=f"h1: cannot start {program}: {why}"):
            host.open([program])
    assert host._connected().greeting["env"] == {"HOME": os.environ["HOME"]}


def test_many_programs_share_the_stream_and_a_slow_reader_does_not_delay_them(host: ByCommand) -> None:
    endless = host.open(["sh", "-c", "yes '{\"a\": 1}'"])
    with ThreadPoolExecutor(12) as pool:
        outputs = pool.map(lambda number: host.run(["echo", str(number)], timeout_s=30).out, range(12))
        assert [*outputs] == [f"{number}\n" for number in range(12)]
    assert endless.receive(5) == {"a": 1}
    endless.close(0.0)
    assert len(host.commands) == 1


def test_a_prolog_may_print_text_and_the_commands_failure_is_reported() -> None:
    noisy = ByCommand("sh", "-c", 'echo hello; exec "$0" "$@"')
    assert noisy.run(["true"], timeout_s=30).code == 0
    noisy.close()
    broken = ByCommand("sh", "-c", "echo 'pods \"h1\" not found' >&2")
    with pytest.raises(HostLost, match='h1: sh: pods "h1" not found'):
        broken.run(["true"], timeout_s=30)
    with pytest.raises(HostError, match="h1: cannot start no-such-command: No such file"):
        ByCommand("no-such-command").run(["true"], timeout_s=30)


class Reversing(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(self.rfile.read()[::-1])


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 16


@pytest.fixture
def reversing(tmp_path: Path) -> Iterator[Path]:
    """The socket of a server that sends back what it gets, from the end."""
    with Server(str(tmp_path / "own.sock"), Reversing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path / "own.sock"
        server.shutdown()


def ask(host: ByCommand, path: Path, data: bytes) -> bytes:
    with host.open_socket(str(path)) as asking:
        asking.settimeout(30)
        asking.sendall(data)
        asking.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: asking.recv(65536), b""))


def test_a_hosts_socket_is_reachable_on_this_machine(host: ByCommand, reversing: Path) -> None:
    big = random.Random(3).randbytes(1_000_000)
    with ThreadPoolExecutor(12) as pool:
        answers = pool.map(lambda number: ask(host, reversing, big[number:]), range(12))
        assert [*answers] == [big[number:][::-1] for number in range(12)]
    with host.open_socket(str(reversing)) as asking:  # a client that disconnects early leaves nothing
        asking.sendall(b"x")
    until(lambda: not host._connected()._programs, "the end of the connections")
    with host.open_socket(str(reversing)) as asking:
        host.commands[-1].kill()
        assert asking.recv(1) == b""
    host.reconnect()
    assert ask(host, reversing, b"abc") == b"cba"
    with pytest.raises(HostError, match=r"cannot reach the socket /no/such\.sock: No such file or directory"):
        host.open_socket("/no/such.sock")


def test_a_connection_waits_while_the_queue_of_a_socket_is_full(host: ByCommand, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        host.run(["true"], timeout_s=30)
        waits_in = Path(f"/proc/{host.commands[0].pid}/wchan")
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(host.connect, path)
            until(lambda: made.done() or waits_in.read_text().startswith("unix_"), "the attempt to connect")
            host.commands[0].send_signal(signal.SIGCHLD)
            listener.accept()[0].close()
            channel = made.result()
            channel.send({})
            with listener.accept()[0] as accepted:
                assert accepted.recv(16) == b"{}\n"
            channel.close()


def test_the_loss_of_the_command_differs_from_the_end_of_a_program(host: ByCommand) -> None:
    channel = host.open([sys.executable, "-c", "print('{}', flush=True); input()"])
    assert channel.receive(10) == {}
    host.commands[-1].kill()
    with pytest.raises(HostLost, match="h1: the connection is lost"):
        channel.receive(10)
    channel.close(0.0)
    host.reconnect()
    assert host.run(["true"], timeout_s=30).code == 0


def is_alive(file: Path) -> bool:
    """Whether the process with the number in the file runs."""
    with suppress(OSError):
        return "State:\tZ" not in Path("/proc", file.read_text().strip(), "status").read_text()
    return False


DEAF = "import os, time\nstarted_by = os.getppid()\nwhile os.getppid() == started_by: time.sleep(0.1)"
"""A program that does not read what it is sent."""


def talk(channel: Channel, *, sends: bool) -> None:
    """Send or receive without end."""
    while sends:  # more than the pipes and the window hold
        channel.send({"data": "x" * 300_000})
    while channel.receive(30) is not None:
        pass


@pytest.mark.parametrize("way", ["idle", "to the host", "from the host"])
def test_a_frozen_host_is_lost_whatever_is_under_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "LINK_S", 0.5)
    monkeypatch.setattr(silence, "PING_S", 0.2)
    host = ByCommand()
    program = {"from the host": ["yes", "{}"], "to the host": [sys.executable, "-c", DEAF]}.get(way, ["cat"])
    channel = host.open(program)
    host.commands[-1].send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(HostLost, match=r"h1: the connection is lost: no sign of life for 0\.7 s"):
            talk(channel, sends=way == "to the host")
    finally:
        host.commands[-1].send_signal(signal.SIGCONT)
        host.close()


def test_a_silent_host_gives_signs_of_life_and_a_silent_controller_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "LINK_S", 1.8)
    monkeypatch.setattr(silence, "PING_S", 0.2)
    monkeypatch.setattr(silence, "RELAY_S", 1.8)
    host = ByCommand()
    assert host.run(["sleep", "3"], timeout_s=30).code == 0
    assert host.run(["true"], timeout_s=30).code == 0
    host.close()


def test_a_pause_of_this_process_is_no_silence_of_the_host(host: ByCommand) -> None:
    one = host._connected()
    for _ in range(3):
        one.count_silence(100.0)
    assert host.run(["true"], timeout_s=30).code == 0
    for _ in range(12):
        one.count_silence(1.0)
    assert one.lost_because == "no sign of life for 10 s"


def test_what_run_started_ends_with_the_controller_and_other_programs_read_its_end(
    host: ByCommand, tmp_path: Path
) -> None:
    code = "import sys, time; print('{}', flush=True); sys.stdin.read(); time.sleep(0.2); open(sys.argv[1], 'w')"
    channel = host.open([sys.executable, "-c", code, str(tmp_path / "read")])
    assert channel.receive(10) == {}
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(host.run, ["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"], timeout_s=60)
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the program")
        host.close()
        with pytest.raises(HostLost, match="it was closed"):
            held.result(20)
    until(lambda: not is_alive(tmp_path / "pid"), "the end of the program")
    until((tmp_path / "read").exists, "the end of the input")


@pytest.mark.parametrize("notices", [True, False])
def test_a_host_is_lost_if_a_message_cannot_be_written(
    notices: bool, host: ByCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write fails before the reading side notices that the host has ended, or while it notices nothing."""
    channel = host.open(["cat"])
    (command,) = host.commands
    assert host._stream

    def write(data: bytes) -> None:
        if notices:
            command.kill()
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(host._stream.carrier, "write", write)
    monkeypatch.setattr(stream, "_NOTICE_S", 60.0 if notices else 0.0)
    with pytest.raises(HostLost, match="exit code -9" if notices else "Broken pipe"):
        channel.send({})


def test_a_program_is_ended_with_its_children_and_takes_no_late_message(host: ByCommand, tmp_path: Path) -> None:
    stubborn = f"trap '' TERM HUP; echo '{{}}'; cat; sleep 60 & echo $! > {tmp_path}/child; wait"
    channel = host.open(["sh", "-c", stubborn])
    assert channel.receive(20) == {}
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(channel.close, 60.0)
        until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text(), "the end of the input")
        with pytest.raises(HostError, match="no longer reads its input: it was closed"):
            channel.send({"op": "late"})
        channel._program.kill()
        assert closed.result() == -signal.SIGKILL
    until(lambda: not is_alive(tmp_path / "child"), "the end of the child")
    with pytest.raises(HostError, match=r"h1: sh did not end within 0\.3 s"):
        host.run(["sh", "-c", "trap '' TERM HUP; sleep 60; sleep 60"], timeout_s=0.3)


@pytest.mark.parametrize("end", ["closed", "reset"])
def test_a_process_that_stays_does_so_until_its_programs_have_ended(end: str, tmp_path: Path) -> None:
    """A program that survives its controller keeps a step of Slurm, which would otherwise kill it."""
    code = "import os, sys, time; os.write(1, b'{}\\n'); sys.stdin.read(); time.sleep(0.3); open(sys.argv[1], 'w')"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    command = [sys.executable, "-I", "-S", "-c", stream.BOOT]
    process = subprocess.Popen(command, stdin=there.fileno(), stdout=there.fileno())
    there.close()
    carrier = SocketCarrier("test", here, lambda: "")
    made = stream.HostStream("h1", "python", carrier, stream.preface({"stays": True}, 1.0), 1.0)
    program = made.start({"op": "open", "argv": [sys.executable, "-c", code, str(tmp_path / "x")], "env": {}})
    program.wait(30, lambda: False)
    if end == "reset":
        here.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()
    assert process.wait(30) == 0
    assert (tmp_path / "x").exists()


def test_at_the_end_of_a_job_the_last_words_of_programs_arrive(host: ByCommand) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('{\"last\": 1}', flush=True), sys.exit(0)))\n"
        "print('{}', flush=True)\ntime.sleep(60)"
    )
    channel = host.open([sys.executable, "-c", code])
    assert channel.receive(10) == {}
    host.commands[-1].terminate()
    assert channel.receive(10) == {"last": 1}
    assert channel.receive(10) is None
    assert channel.close() == 0


# A host that reads the text, its request and one frame, with an answer before the frame and one behind it.
INVALID = """
import sys
for _ in range(2):
    sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
for answer in sys.argv[1:3]:
    sys.stdout.buffer.write(answer.encode().decode("unicode_escape").encode())
    sys.stdout.flush()
    sys.stdin.buffer.readline()
sys.stdin.buffer.read()
"""
GREETED = MARKER.decode() + "{}\n"


@pytest.mark.parametrize(
    ("greeting", "answer", "problem"),
    [
        (MARKER.decode() + '{"old": "3.6"}\n', "", "is Python 3.6; Python >= 3.8 is required"),
        (MARKER.decode() + "[]\n", "", "the greeting is a list of 0; expected a table"),
        ("x" * 1001, "", "1000 bytes before the greeting; expected the greeting"),
        (GREETED, "x" * 80, "invalid reply: b'x"),
        (GREETED, "1 o 99999999\n", "invalid reply: a frame of 99999999 bytes; expected at most 4194304"),
        (GREETED, "1 ? 0\n\n", "invalid reply: unknown kind b'?'"),
        (GREETED, "1 r 2\n[]\n", "invalid reply: h1 sent an invalid reply: the reply is a list of 0"),
    ],
)
def test_an_invalid_answer_of_a_host_is_named(
    greeting: str, answer: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_NOISE_BYTES", 1000)
    texts = [text.encode("unicode_escape").decode() for text in (greeting, answer)]
    host = ByCommand(sys.executable, "-c", INVALID, *texts)
    with pytest.raises(HostError) as caught:
        host.run(["true"], timeout_s=30)
    assert problem in str(caught.value)
    for command in host.commands:
        command.kill()
    host.close()
