"""The host's end of a session: sent as text and run by the host's own Python (>= 3.8).

This file imports nothing of the project and few other modules, since each session starts it again. The command that
runs it sets ``stdin``, the reader of the session's input: the request, a JSON text with its length before it, then the
input of the program. Replies follow a marker, since a login shell may print text before them: one reply on stdout
before the program's output, one on stderr after it.
"""

# Paths are bytes here, and loading pathlib takes time.
# ruff: noqa: PTH113, PTH118

import _thread
import contextlib
import io
import json
import os
import select
import signal
import sys
from typing import Any, NoReturn

MARKER = b"\0\1flagperf\1\0"
CHUNK = 1 << 18

# Set by the command that runs this text.
stdin: io.BufferedReader = globals().get("stdin") or sys.stdin.buffer  # type: ignore[assignment]


def reply(fd: int, **answer: Any) -> None:
    """Send a reply; ignore a closed connection."""
    with contextlib.suppress(OSError):
        write(fd, MARKER + json.dumps(answer).encode() + b"\n")


def write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def take(remaining: int) -> bytes:
    """Read some of the remaining input; EOFError if the controller disconnects."""
    data = stdin.read1(min(remaining, CHUNK))
    if not data:
        raise EOFError("the connection ended too early")
    return data


def end(**answer: Any) -> NoReturn:
    """Send the last reply and exit; sys.exit() would wait for a reading thread."""
    reply(2, **answer)
    os._exit(0)


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def program(request: "dict[str, Any]") -> "tuple[list[bytes], dict[bytes, bytes]]":
    env = dict(os.environb)
    env.update((raw(name), raw(value)) for name, value in request["env"].items())
    return [raw(word) for word in request["argv"]], env


def execute(argv: "list[bytes]", env: "dict[bytes, bytes]") -> NoReturn:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores SIGPIPE, and programs would inherit that
    os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell


def start(request: "dict[str, Any]") -> str:
    """Replace this process by the program. If the program is Python code for this interpreter, return it instead."""
    argv, env = program(request)
    places = [b""] if b"/" in argv[0] else env.get(b"PATH", raw(os.defpath)).split(b":")
    paths = [path for path in (os.path.join(place, argv[0]) for place in places) if os.path.isfile(path)]
    if not paths:
        end(error="No such file or directory")
    if not any(os.access(path, os.X_OK) for path in paths):
        end(error="Permission denied")
    if os.getsid(0) != os.getpid():
        os.setsid()
    reply(1, pid=os.getpid())
    if argv[:4] == [raw(request["python"]), b"-I", b"-S", b"-c"] and env == os.environb:
        sys.argv[:] = ["-c", *map(os.fsdecode, argv[5:])]
        return os.fsdecode(argv[4])
    execute(argv, env)


def run(request: "dict[str, Any]") -> NoReturn:
    """Run the program and report its end; end its process group if the controller disconnects."""
    argv, env = program(request)
    program_input, feed = os.pipe()
    errors, report_error = os.pipe()
    reply(1)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.dup2(program_input, 0)
            execute(argv, env)
        except OSError as error:
            os.write(report_error, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(program_input)
    os.close(report_error)
    failed = os.read(errors, 16)  # until the program runs, in its own process group
    _thread.start_new_thread(feed_program, (child, feed, request["stdin"]))
    status = os.waitpid(child, 0)[1]
    if failed:
        end(error=os.strerror(int(failed)))
    end(code=-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def feed_program(child: int, feed: int, remaining: int) -> None:
    """Send a program its input, then wait until the controller disconnects."""
    try:
        reads = True
        while remaining:
            data = take(remaining)
            remaining -= len(data)
            try:
                write(feed, data if reads else b"")
            except OSError:
                reads = False
        os.close(feed)
        take(1)
    except EOFError:
        os.killpg(child, signal.SIGKILL)


def bridge(request: "dict[str, Any]") -> NoReturn:
    """Pass bytes between the session and a Unix socket, each direction until its own end."""
    import socket

    target = socket.socket(socket.AF_UNIX)
    target.connect(raw(request["path"]))
    reply(1)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(target, select.POLLIN)
    poll.register(1, 0)  # only to notice that the controller is gone
    while True:
        for fd, _ in poll.poll():
            if fd == 1:
                os._exit(0)
            data = os.read(0, CHUNK) if fd == 0 else target.recv(CHUNK)
            if fd != 0 and not data:
                end(code=0)
            elif fd != 0:
                write(1, data)
            elif data:
                target.sendall(data)
            else:
                poll.unregister(0)
                target.shutdown(socket.SHUT_WR)


def main() -> str:
    tasks = {"start": start, "run": run, "bridge": bridge}
    request = json.loads(stdin.read(int(stdin.readline())).decode())
    try:
        return str(tasks[request["op"]](request))  # the other operations do not return
    except OSError as error:
        end(error=error.strerror or str(error))


if __name__ == "__main__":
    if sys.version_info < (3, 8):  # noqa: UP036 - this file checks the version
        end(old="%d.%d" % sys.version_info[:2])  # noqa: UP031 - as above
    text = main()
    # Starting the same Python again would take longer than everything above.
    exec(compile(text, "<string>", "exec"))  # noqa: S102
