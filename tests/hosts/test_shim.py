"""The host's end of a session, as its own Python runs it."""

import json
import subprocess
import sys
from pathlib import Path

from pytest_flagperf.hosts import shim

# The child begins its process group only when the parent waits for it, and a new thread is faster than the child.
SLOW_CHILD = """
import _thread, os, sys
gate, opened = os.pipe()
begin, read = os.setsid, os.read

def setsid():
    os.close(opened)
    read(gate, 1)
    begin()

def read_errors(*arguments):
    os.write(opened, b"1")
    return read(*arguments)

os.setsid, os.read = setsid, read_errors
_thread.start_new_thread = lambda function, arguments: function(*arguments)
exec(compile(open(sys.argv[1]).read(), "shim", "exec"))
"""


def test_a_program_whose_controller_left_before_its_start_is_ended(tmp_path: Path) -> None:
    request, errors = json.dumps({"op": "run", "argv": ["sleep", "60"], "env": {}, "stdin": 0}), tmp_path / "errors"
    argv = [sys.executable, "-c", SLOW_CHILD, str(shim.__file__)]
    with errors.open("wb") as stderr:
        subprocess.run(argv, input=f"{len(request)}\n{request}".encode(), stderr=stderr, check=False)
    assert json.loads(errors.read_bytes().removeprefix(shim.MARKER)) == {"code": -9}
