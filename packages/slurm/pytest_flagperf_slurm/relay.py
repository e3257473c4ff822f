"""What a node of a job does around the controller's process: it connects to the controller, and holds the job.

Sent as text and run by the node's own Python (>= 3.8); this file imports nothing of the project. The command that runs
it sets ``stdin``, which holds a request with the text of host_process.py; ``hold`` runs the batch script of a job that
a run requested. A node that one srun started together with others connects to the controller, instead of using srun's
own input and output.
"""

# ruff: noqa: PTH103, PTH108, PTH110, PTH118

import contextlib
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from typing import Any

UNREACHABLE = "unreachable"
CONNECT_S = 20.0
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # before the controller's first word
NAME_BYTES = 256  # a connection begins with the token, and the node's name in this many bytes

# Set by the command that runs this text.
stdin: Any = globals().get("stdin")


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
    program = compile(request["program"], "host_process", "exec")
    if "port" in request:
        connect(request["port"], request["token"])
    if request["own"]:  # a job that a run requested; the descriptor stays open
        lock(lock_file(os.environ["SLURM_JOB_ID"]), fcntl.LOCK_SH)
    names: dict[str, Any] = {"__name__": "host_process", "stdin": stdin}
    exec(program, names)  # noqa: S102 - the controller's own text
    names["greet"](request).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
