"""What answers a host's end of an SSH session, sent there as text and run by its own Python (>= 3.8).

Imports nothing of the project and little else: each session starts it anew. ``stdin``, the reader of what comes
over the session, is put there by the command that runs this. First the request, one JSON text with its length
before it, then what the program is to read. Answers stand behind a mark, for a login shell may have said
something before: one on stdout before the program's own output, one on stderr after it.
"""

# Paths are bytes here, and pathlib would have to be loaded.
# ruff: noqa: PTH103, PTH105, PTH108, PTH113, PTH118, PTH120

import _thread
import contextlib
import io
import json
import os
import select
import signal
import sys
from typing import Any, NoReturn

MARK = b"\0\1flagperf\1\0"
CHUNK = 1 << 18

# Put there by the command that runs this text.
stdin: io.BufferedReader = globals().get("stdin") or sys.stdin.buffer  # type: ignore[assignment]


def tell(fd: int, **answer: Any) -> None:
    """One answer; nobody may listen any more."""
    with contextlib.suppress(OSError):
        write(fd, MARK + json.dumps(answer).encode() + b"\n")


def write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def take(left: int) -> bytes:
    """Some of what is still to come over the session; EOFError if the controller hangs up before that."""
    data = stdin.read1(min(left, CHUNK))
    if not data:
        raise EOFError("the connection ended too early")
    return data


def end(**answer: Any) -> NoReturn:
    """The last word; not by way of sys.exit, which would wait for what still reads."""
    tell(2, **answer)
    os._exit(0)


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def program(request: "dict[str, Any]") -> "tuple[list[bytes], dict[bytes, bytes]]":
    env = dict(os.environb)
    env.update((raw(name), raw(value)) for name, value in request["env"].items())
    return [raw(word) for word in request["argv"]], env


def execute(argv: "list[bytes]", env: "dict[bytes, bytes]") -> NoReturn:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python itself ignores it, and programs would inherit that
    os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell is what is wanted


def start(request: "dict[str, Any]") -> str:
    """Become the program; one that is a text for this very Python, started like this, is for the caller to run."""
    argv, env = program(request)
    places = [b""] if b"/" in argv[0] else env.get(b"PATH", raw(os.defpath)).split(b":")
    found = [path for path in (os.path.join(place, argv[0]) for place in places) if os.path.isfile(path)]
    if not found:
        end(error="No such file or directory")
    if not any(os.access(path, os.X_OK) for path in found):
        end(error="Permission denied")
    if os.getsid(0) != os.getpid():
        os.setsid()
    tell(1, pid=os.getpid())
    if argv[:4] == [raw(request["python"]), b"-I", b"-S", b"-c"] and env == os.environb:
        sys.argv[:] = ["-c", *map(os.fsdecode, argv[5:])]
        return os.fsdecode(argv[4])
    execute(argv, env)


def run(request: "dict[str, Any]") -> NoReturn:
    """Run the program and tell how it ended; one whose controller hangs up is ended with all its group."""
    argv, env = program(request)
    mouth, feed = os.pipe()
    fault, told = os.pipe()
    tell(1)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.dup2(mouth, 0)
            execute(argv, env)
        except OSError as error:
            os.write(told, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(mouth)
    os.close(told)
    _thread.start_new_thread(nurse, (child, feed, request["stdin"]))
    failed = os.read(fault, 16)
    status = os.waitpid(child, 0)[1]
    if failed:
        end(error=os.strerror(int(failed)))
    end(code=-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def nurse(child: int, feed: int, left: int) -> None:
    """Feed a program, then wait for its controller to hang up."""
    try:
        listens = True
        while left:
            data = take(left)
            left -= len(data)
            try:
                write(feed, data if listens else b"")
            except OSError:
                listens = False
        os.close(feed)
        take(1)
    except EOFError:
        os.killpg(child, signal.SIGKILL)


def put(request: "dict[str, Any]") -> NoReturn:
    """Write a file, whole or not at all."""
    path = raw(request["path"])
    folder = os.path.dirname(path) or b"."
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, b".flagperf-" + os.urandom(6).hex().encode())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        tell(1)
        left = request["stdin"]
        while left:
            data = take(left)
            left -= len(data)
            write(fd, data)
        os.fchmod(fd, request["mode"])
        os.utime(fd, ns=(request["mtime_ns"], request["mtime_ns"]))
        os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    end(code=0)


def get(request: "dict[str, Any]") -> NoReturn:
    """Send a file: first its size, then as many bytes as it had."""
    with open(raw(request["path"]), "rb", 0) as file:  # noqa: PTH123 - a name in bytes
        stat = os.fstat(file.fileno())
        left = stat.st_size
        tell(1, size=left, mode=stat.st_mode & 0o777, mtime_ns=stat.st_mtime_ns)
        while left:
            data = file.read(min(left, CHUNK))
            if not data:
                end(error="the file was truncated while it was read")
            left -= len(data)
            write(1, data)
    end(code=0)


def kill(request: "dict[str, Any]") -> NoReturn:
    """End a program that was started here, with all its group."""
    tell(1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(request["pid"], signal.SIGKILL)
    end(code=0)


def bridge(request: "dict[str, Any]") -> NoReturn:
    """Pass bytes between the session and a Unix socket, each direction until its own end."""
    import socket

    there = socket.socket(socket.AF_UNIX)
    there.connect(raw(request["path"]))
    tell(1)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(there, select.POLLIN)
    poll.register(1, 0)  # only to hear that the controller is gone
    while True:
        for fd, _ in poll.poll():
            if fd == 1:
                os._exit(0)
            data = os.read(0, CHUNK) if fd == 0 else there.recv(CHUNK)
            if fd != 0 and not data:
                end(code=0)
            elif fd != 0:
                write(1, data)
            elif data:
                there.sendall(data)
            else:
                poll.unregister(0)
                there.shutdown(socket.SHUT_WR)


def main() -> str:
    tasks = {"start": start, "run": run, "put": put, "get": get, "kill": kill, "bridge": bridge}
    request = json.loads(stdin.read(int(stdin.readline())).decode())
    try:
        return str(tasks[request["op"]](request))  # the others do not come back
    except OSError as error:
        end(error=error.strerror or str(error))
    except EOFError as error:
        end(error=str(error))


if __name__ == "__main__":
    if sys.version_info < (3, 8):  # noqa: UP036 - this is the file that finds out
        end(old="%d.%d" % sys.version_info[:2])  # noqa: UP031 - as above
    text = main()
    # Another start of the same Python would take longer than all that is done here.
    exec(compile(text, "<string>", "exec"))  # noqa: S102
