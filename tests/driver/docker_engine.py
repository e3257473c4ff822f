"""A Docker engine that knows one container, whose main process it starts on this machine; for the agent's tests."""

from __future__ import annotations

import json
import os
import signal
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.processes import descendants

NAME = "c0ffee"


class DockerEngine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves ``path`` until it is closed; ``argv`` is what the container runs."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, path: Path, argv: Sequence[str], env: dict[str, str]) -> None:
        super().__init__(str(path), _Handler)
        self.path = path
        self.argv, self.env = list(argv), env
        self.refuses: dict[str, str] = {}  # what is refused, and with which words
        self.oom_killed = False
        self.main: subprocess.Popen[bytes] | None = None
        self.removed = threading.Event()
        self.words = path.with_name("container.log")
        self.words.touch()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def start(self) -> None:
        with self.words.open("ab") as words:
            self.main = subprocess.Popen(
                self.argv,
                env={**self.env, "TMPDIR": tempfile.mkdtemp(prefix="fp-")},  # a container's own, which goes with it
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                start_new_session=True,
            )

    def state(self) -> dict[str, Any]:
        code = self.main.poll() if self.main is not None else 0
        killed = code is not None and code < 0
        return {
            "Running": self.main is not None and code is None,
            "ExitCode": 128 - code if killed and code is not None else code or 0,
            "OOMKilled": self.oom_killed,
            "Error": "",
            "Pid": self.main.pid if self.main is not None else 0,
        }

    def remove(self) -> None:
        """What a container's end does to all of its processes, a kill of their sessions does here to most."""
        if self.main is not None:
            for pid in descendants(self.main.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.main.wait(10)
        self.removed.set()

    def close(self) -> None:
        self.remove()
        self.shutdown()
        self.server_close()
        self.path.unlink(missing_ok=True)

    def handle_error(self, *_: object) -> None:
        """Whoever hangs up may."""


class _Handler(BaseHTTPRequestHandler):
    server: DockerEngine

    def do_GET(self) -> None:
        if self.path.endswith("/_ping"):
            self._say(200, {})
        elif self._is("json"):
            self._say(200, {"State": self.server.state()})
        elif self._is("logs"):
            self._say(200, self.server.words.read_bytes())
        else:
            self._say(404, {"message": "No such container"})

    def do_POST(self) -> None:
        if self._is("start"):
            self.server.start()
            self._say(204, b"")

    def do_DELETE(self) -> None:
        if self._is(""):
            self.server.remove()
            self._say(204, b"")

    def _is(self, what: str) -> bool:
        """Whether it is asked for this of our container; a refusal is answered here."""
        words = self.server.refuses.get(what)
        if words is not None:
            self._say(500, {"message": words})
            return False
        return self.path.split("?")[0].endswith(f"/containers/{NAME}/{what}".rstrip("/"))

    def _say(self, status: int, body: Any) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Api-Version", "1.41")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        """A test's output is its own."""
