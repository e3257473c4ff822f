"""A package index on this machine: a folder of small wheels, served over HTTP, which records the requests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class PackageIndex:
    """An index with wheels in ``folder/<index>/<package>/``; ``asked`` has all requested paths."""

    def __init__(self, folder: Path, port: int, asked: list[str]) -> None:
        self.folder, self.asked = folder, asked
        self._address = f"http://127.0.0.1:{port}"

    def url(self, index: str) -> str:
        return f"{self._address}/{index}/"

    def times(self, index: str, package: str) -> int:
        return self.asked.count(f"/{index}/{package}/")


@contextmanager
def package_index(folder: Path) -> Iterator[PackageIndex]:
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, code: object = "-", size: object = "-") -> None:
            asked.append(self.path)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the method that it replaces
            pass

        def end_headers(self) -> None:
            self.send_header("Cache-Control", "no-store")
            super().end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield PackageIndex(folder, server.server_port, asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
