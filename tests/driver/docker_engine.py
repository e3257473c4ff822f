"""A fake Docker engine with one container, whose main process it starts on this machine."""

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

from tests.helpers.processes import descendants

NAME = "c0ffee"


class DockerEngine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serve the socket ``path`` until closed; ``argv`` is the command of the container."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, path: Path, argv: Sequence[str], env: dict[str, str]) -> None:
        super().__init__(str(path), _Handler)
        self.path = path
        self.argv, self.env = list(argv), env
        self.refusals: dict[str, str] = {}  # error messages by endpoint
        self.oom_killed = False
        self.main: subprocess.Popen[bytes] | None = None
        self.removed = threading.Event()
        self.log = path.with_name("container.log")
        self.log.touch()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.main = subprocess.Popen(
                self.argv,
                env={**self.env, "TMPDIR": tempfile.mkdtemp(prefix="fp-")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        assert self.main is not None
        self.main.send_signal(number)

    def state(self) -> dict[str, Any]:
        code = self.main.poll() if self.main is not None else 0
        killed = code is not None and code < 0
        return {
            "Running": self.main is not None and code is None,
            "ExitCode": 128 - code if killed and code is not None else code or 0,
            "OOMKilled": self.oom_killed,
            "Pid": self.main.pid if self.main is not None else 0,
        }

    def remove(self) -> None:
        """Kill the main process and its descendants, as the end of a container does."""
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
        """Ignore closed connections."""


class _Handler(BaseHTTPRequestHandler):
    server: DockerEngine

    def do_GET(self) -> None:
        if self.path.endswith("/_ping"):
            self._reply(200, {})
        elif self._is("json"):
            self._reply(200, {"State": self.server.state()})
        elif self._is("logs"):
            self._reply(200, self.server.log.read_bytes())
        else:
            self._reply(404, {"message": "No such container"})

    def do_POST(self) -> None:
        if self._is("start"):
            self.server.start()
            self._reply(204, b"")
        elif self._is("wait") and self.server.main is not None:
            self._reply(200, {"StatusCode": self.server.main.wait()})

    def do_DELETE(self) -> None:
        if self._is(""):
            self.server.remove()
            self._reply(204, b"")

    def _is(self, endpoint: str) -> bool:
        """Return True for a request to this endpoint of the container; reply with an error if one is set."""
        message = self.server.refusals.get(endpoint)
        if message is not None:
            self._reply(500, {"message": message})
            return False
        return self.path.split("?")[0].endswith(f"/containers/{NAME}/{endpoint}".rstrip("/"))

    def _reply(self, status: int, body: Any) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Api-Version", "1.41")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
