"""Build a framework's environment on this host with uv, or reuse one with the same content.

It serves one request (see ``request_server``): ``{"op": "look" | "size" | "build", "framework", "requirements":
[line, ...], "python": path or null, "settings": {uv's variables}, "advice"}``; ``size`` and ``build`` also need
``"uv"`` and ``"timeout_s"``. All return ``Environment.answer``; ``build`` also sends ``progress`` messages, and
``size`` returns ``"packages"`` and ``"bytes"``: what a build would fetch at most, null if it is unknown; then
``"unreachable"`` has the reason if no index answers, and ``"absent"`` if a folder, instead of an index, lacks packages.

A build that failed is not repeated for the same ``"run"``: its error is raised again. With ``"optional"``, packages
that cannot be found are not an error: the answer's ``"unavailable"`` is the reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import textwrap
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Callable, Mapping, Sequence
from urllib.parse import unquote

from flagperf_driver import addresses
from flagperf_driver.node.environments import seal
from flagperf_driver.node.environments.environment import RESULT_SETTINGS, TRUE, BuildError, Environment, describe
from flagperf_driver.node.long_work import one_at_a_time, run_program
from flagperf_driver.node.request_server import Answer, Request, send, serve

OVERRIDE = "--override "  # begins a line that replaces what packages require of another one
_LAST_LINES = 15
_SOURCES = (
    "To fetch packages from another index, set pip-source in flagperf.toml; behind a proxy, set HTTPS_PROXY and"
    " NO_PROXY where the environment is built. Without an index, pass --runtime=host, which uses an installed Python,"
    " or --wheels=DIR, a folder of wheels. uv keeps what it fetched in its cache (UV_CACHE_DIR); environments are kept"
    " in {cache} (FLAGPERF_CACHE)."
)
# Used to check whether an index can be reached, not to download packages.
_SHORT_TIMEOUTS = {"UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "15"}
_LONGEST_REASON = 160
_SIZE = re.compile(r"\bsize = (\d+)")
_FILE = re.compile(r'\burl = "file://([^"]+)"')
_CAUSE = re.compile(r"\s+(?:cause|Caused by): (.+)")
_UNFETCHED = re.compile(r"Failed to fetch: `?(\w+://[^/`]+)")
_NO_ANSWER = re.compile(r"\((Connect|SendRequest)\)|dns error|operation timed out")
_LOOK_AGAIN_S = 86400.0
_WRONG_PYTHON = re.compile(r"does not satisfy Python|requires Python|matching Python ABI tag|Python version tag")


class UvFailed(BuildError):
    """uv failed or did not end in time; ``lines`` are the lines that it printed."""

    def __init__(self, text: str, lines: Sequence[str]) -> None:
        super().__init__(text)
        self.lines = lines


def build(environment: Environment, request: Request) -> str | None:
    """Build the environment while other processes that need it wait; return why an optional one was not built.

    The reason is empty if another process of the run has reported it.
    """
    deadline = time.monotonic() + float(request["timeout_s"])
    work = "this environment"
    with one_at_a_time(environment.beside(".lock"), deadline, f"builds {work}", f"building {work}"):
        if not environment.changes():
            return None
        earlier = _EarlierBuild(environment.beside(".failed"), str(request.get("run") or ""))
        if earlier.unavailable():
            return ""  # the process that tried has reported the reason
        try:
            unavailable = _Build(environment, request, deadline).run()
        except UvFailed as error:
            earlier.record(error=str(error))
            raise
        earlier.record(unavailable=unavailable)
        return unavailable


def reason(lines: Sequence[str]) -> str:
    """Return in one short line why uv found no packages: its first cause, or the index that it could not reach."""
    printed = [line.strip() for line in lines if line.strip()]
    causes = [match[1] for match in map(_CAUSE.match, lines) if match] or printed
    unfetched = next((match for match in map(_UNFETCHED.match, causes) if match), None)
    text = f"cannot fetch from {unfetched[1]}: {causes[-1]}" if unfetched else (causes or ["uv failed"])[0]
    return textwrap.shorten(text, _LONGEST_REASON, placeholder=" ...")


class _EarlierBuild:
    """The last failed build of an environment, and its run: the same run does not repeat the build.

    Packages that could not be found are looked for again after a day.
    """

    def __init__(self, file: Path, run: str) -> None:
        self._file, self._run = file, run

    def unavailable(self) -> str | None:
        """Return why packages were unavailable lately; raise the error of an earlier failed build of this run."""
        before = self._before()
        if before.get("error") and self._run and before.get("run") == self._run:
            raise BuildError(str(before["error"]))
        return self.lately_unavailable()

    def lately_unavailable(self) -> str | None:
        """Return why packages of an optional environment could not be found within the last day."""
        reason = self._before().get("unavailable")
        with suppress(OSError):
            if reason and time.time() - self._file.stat().st_mtime < _LOOK_AGAIN_S:
                return str(reason)
        return None

    def _before(self) -> Mapping[str, object]:
        try:
            before = json.loads(self._file.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return before if isinstance(before, dict) else {}

    def record(self, error: str | None = None, unavailable: str | None = None) -> None:
        with suppress(FileNotFoundError):
            self._file.unlink()
        if error or unavailable:
            content = {"run": self._run, "error": error, "unavailable": unavailable}
            self._file.write_text(json.dumps(content), "utf-8")


class _Build:
    """The build of one environment with uv."""

    def __init__(self, environment: Environment, request: Request, deadline: float) -> None:
        self._environment = environment
        self._uv = str(request["uv"])
        self._advice = str(request.get("advice") or "")
        self._optional = bool(request.get("optional"))
        self._deadline = deadline
        self._log = environment.beside(".log")
        given = " ".join([*environment.requirements, *environment.settings.values()])
        # The longest first: one secret may be a part of another.
        self._secrets = sorted(addresses.secrets_in(given), key=len, reverse=True)

    def run(self) -> str | None:
        """Build the environment; return why it was not built if it is optional and its packages cannot be found."""
        environment = self._environment
        _remove(environment.folder)
        self._log.write_bytes(b"")
        send("progress", line=f"building the {environment.framework} environment in {environment.folder}")
        files = write_requirements(environment.requirements, environment.beside(".txt"))
        install = ["pip", "install", "--python", environment.executable, "-r", *files]
        install += _index_options({**os.environ, **environment.settings})
        try:
            self._call("venv", "--no-project", "--python", environment.python, str(environment.folder))
            unavailable = self._unavailable(install) if self._optional else None
            if unavailable is None:
                # Otherwise each rank of the first round compiles what it imports.
                self._call(*install, "--compile-bytecode")
                self._finish(self._call("pip", "freeze", "--python", environment.executable))
                send("progress", line=f"listing the files of the {environment.framework} environment")
                seal.write(environment.folder)
        finally:
            if not (environment.folder / seal.NAME).is_file():  # the last file that a build writes
                shutil.rmtree(str(environment.folder), ignore_errors=True)
        return unavailable

    def _unavailable(self, install: Sequence[str]) -> str | None:
        """Return why the packages cannot be found or their index cannot be reached; download no packages."""
        try:
            self._call(*install, "--dry-run", **_SHORT_TIMEOUTS)
        except UvFailed as error:
            return reason(error.lines)
        return None

    def _finish(self, frozen: Sequence[str]) -> None:
        """Write the marker: an environment without it is built again."""
        details: dict[str, str] = {"python": self._environment.version}
        effective = {**os.environ, **self._environment.settings}
        for name in RESULT_SETTINGS:
            if effective.get(name):
                details[name] = addresses.redacted_text(effective[name])
        for line in frozen:
            name, pinned, version = line.partition("==")
            if pinned:
                details[name] = version
            elif " @ " in line:  # from an address or a file, as uv recorded it in direct_url.json
                name, _, source = line.partition(" @ ")
                details[name] = addresses.redacted(source)
        partial = self._environment.marker.with_suffix(".partial")
        partial.write_text(json.dumps(details, indent=1), "utf-8")
        partial.replace(self._environment.marker)

    def _call(self, *words: str, **settings: str) -> list[str]:
        """Run uv, write its output to the log and send it as progress; return its lines."""
        lines: deque[str] = deque(maxlen=10000)
        given = {**settings, **os.environ, **self._environment.settings, "NO_COLOR": "1"}
        with self._log.open("a", encoding="utf-8") as log:

            def take(line: str) -> None:
                shown = self._without_secrets(line)
                log.write(shown + "\n")
                lines.append(shown)
                if words[1] != "freeze":
                    send("progress", line=shown.strip())

            try:
                # Not in a project, whose settings uv would use.
                code = run_program([self._uv, *words], self._deadline, take, env=given, cwd="/")
            except TimeoutError:
                raise UvFailed(self._failure(words, "did not end in time", lines), list(lines)) from None
        if code != 0:
            raise UvFailed(self._failure(words, f"failed with exit code {code}", lines), list(lines))
        return list(lines)

    def _without_secrets(self, line: str) -> str:
        for secret in self._secrets:
            line = line.replace(secret, addresses.HIDDEN)
        return line

    def _failure(self, words: Sequence[str], reason: str, lines: deque[str]) -> str:
        last = "\n".join(f"  {line}" for line in list(lines)[-_LAST_LINES:])
        environment = self._environment
        text = (
            f"the environment {environment.folder.name} could not be built: uv {words[0]} {reason}. Its last lines "
            f"(all of them: {self._log}):\n{last}"
        )
        if self._advice and _WRONG_PYTHON.search(" ".join(" ".join(lines).split())):
            text += f"\nThe environment uses Python {environment.version} ({environment.python}): {self._advice}"
        return f"{text}\n{_SOURCES.format(cache=environment.folder.parent.parent)}"


def write_requirements(lines: Sequence[str], file: Path) -> list[str]:
    """Write the requirements to a file, and overrides to one beside it; return the words that name both to uv."""
    parts = {file: [line for line in lines if not line.startswith(OVERRIDE)]}
    if overrides := [line[len(OVERRIDE) :] for line in lines if line.startswith(OVERRIDE)]:
        parts[file.with_suffix(".overrides.txt")] = overrides
    for path, content in parts.items():
        path.touch(0o600)  # an index's address may contain a password
        path.write_text("\n".join(content) + "\n", "utf-8")
    return [word for path in parts for word in (OVERRIDE.strip(), str(path))][1:]


def _remove(folder: Path) -> None:
    """Remove a folder; raise if something in it remains, which would become a part of the new environment."""
    shutil.rmtree(str(folder), ignore_errors=True)
    if os.path.lexists(str(folder)):
        raise BuildError(f"{folder} cannot be removed to build the environment anew: remove it")


def size(environment: Environment, request: Request) -> Answer:
    """Return the number of packages and their bytes, as the index lists them; download no packages."""
    lines: deque[str] = deque()
    unknown: Answer = {"packages": None, "bytes": None, "unreachable": "", "absent": ""}
    settings = {**_SHORT_TIMEOUTS, **os.environ, **environment.settings}
    environment.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=str(environment.folder.parent)) as folder:
        compiled = ["pip", "compile", "--quiet", "--python", environment.python, "--format", "pylock.toml"]
        compiled += write_requirements(environment.requirements, Path(folder, "requirements.txt"))
        compiled += _index_options(settings)
        try:
            deadline = time.monotonic() + float(request["timeout_s"])
            if run_program([str(request["uv"]), *compiled], deadline, lines.append, env=settings, cwd="/") != 0:
                return {**unknown, **_why_unknown(list(lines), settings)}
        except TimeoutError:
            return {**unknown, "unreachable": f"the package index did not answer within {request['timeout_s']:g} s"}
        except OSError:
            return unknown
    packages = "\n".join(lines).split("[[packages]]")[1:]
    sizes = [size for size in map(_size_of, packages) if size is not None]
    return {**unknown, "packages": len(packages), "bytes": sum(sizes) if len(sizes) == len(packages) else None}


def _index_options(settings: Mapping[str, str]) -> list[str]:
    """Return uv's option for UV_NO_INDEX, which uv itself does not read."""
    return ["--no-index"] if settings.get("UV_NO_INDEX", "").lower() in TRUE else []


def _why_unknown(lines: Sequence[str], settings: Mapping[str, str]) -> Answer:
    """Return whether uv reached no index, or has none, with the reason; nothing if an index lacks the packages."""
    text = addresses.redacted_text(reason(lines))
    if _index_options(settings) or settings.get("UV_OFFLINE", "").lower() in TRUE:
        return {"absent": text}
    return {"unreachable": text} if any(map(_NO_ANSWER.search, lines)) else {}


def _size_of(package: str) -> int | None:
    """Return the bytes of a package by the index, or by its file if the index is a folder of this host."""
    listed, file = _SIZE.search(package), _FILE.search(package)
    if listed:
        return int(listed[1])
    with suppress(OSError):
        return Path(unquote(file[1])).stat().st_size if file else None
    return None


def handle(request: Request) -> Answer:
    environment = describe(request)
    if request["op"] == "size":
        return {**environment.answer(), "unavailable": None, **size(environment, request)}
    tasks: dict[str, Callable[[], str | None]] = {
        "look": lambda: _EarlierBuild(environment.beside(".failed"), "").lately_unavailable(),
        "build": lambda: build(environment, request),
    }
    unavailable = tasks[request["op"]]()
    return {**environment.answer(), "unavailable": unavailable}


if __name__ == "__main__":
    serve(handle)
