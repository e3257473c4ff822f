"""The seal of an environment: a list of its files, by which later changes are found.

Everything that Python imports or runs from an environment is a file in its folder: modules, bytecode, ``.pth`` files,
``sitecustomize``, programs. The seal has each file's stamp (size and times) and a digest of its content. A check takes
a fraction of a second: it compares the stamps, and reads only files with another stamp, as in a copied environment.

As a host module (see ``request_server``) it serves one request: ``{"folder"}``; the answer has the ``changes``.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Iterator, List, Sequence

from flagperf_driver.node.request_server import Answer, Request, serve

NAME = "sealed.txt"
_BLOCK = 1 << 20
_READ_AT_START = (".pth", "sitecustomize.py", "usercustomize.py", "pyvenv.cfg")
Stamp = List[int]


def write(folder: Path) -> int:
    """Seal an environment as it is; return the number of its files."""
    from concurrent.futures import ThreadPoolExecutor  # imported here to start the check before a round faster

    stamps = _stamps(folder)
    with ThreadPoolExecutor() as pool:  # reading and hashing release the interpreter's lock
        digests = pool.map(lambda name: _digest(folder / name), stamps)
        files = {name: [*stamp, digest] for (name, stamp), digest in zip(stamps.items(), digests)}
    _store(folder, stamps, files)
    return len(files)


def changes(folder: Path) -> Sequence[str]:
    """Return the files that were added, removed or changed after the environment was sealed."""
    stamps = _stamps(folder)
    try:
        whole, _, rest = (folder / NAME).read_text("utf-8").partition("\n")
        if whole == _whole(folder, stamps):
            return []
        files = json.loads(rest)
        found = [*_differences(folder, files, stamps)]
    except FileNotFoundError:
        return ["it has no list of its files"]
    except (ValueError, TypeError, AttributeError, IndexError):
        return ["the list of its files is damaged"]
    if not found:  # a copy, which has other times
        with suppress(OSError):
            _store(folder, stamps, {name: [*stamp, files[name][-1]] for name, stamp in stamps.items()})
    return found


def _differences(folder: Path, files: dict[str, list[object]], stamps: dict[str, Stamp]) -> Iterator[str]:
    yield from (f"{name} was added" for name in sorted(stamps.keys() - files.keys()))
    yield from (f"{name} was removed" for name in sorted(files.keys() - stamps.keys()))
    for name in sorted(stamps.keys() & files.keys()):
        *stamp, digest = files[name]
        if (stamp != stamps[name] or _is_read_at_start(name)) and digest != _digest(folder / name):
            yield f"{name} was changed"


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Return the stamps of all files and links below a folder but the seal."""
    stamps: dict[str, Stamp] = {}
    left = [""]
    while left:
        below = left.pop()
        with os.scandir(os.path.join(folder, below)) as entries:  # noqa: PTH118 - called for thousands of folders
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(f"{below}{entry.name}/")
                else:
                    status = entry.stat(follow_symlinks=False)
                    # The links of a file in uv's cache change its ctime when another environment is built.
                    own = status.st_ctime_ns if status.st_nlink == 1 else 0
                    stamps[below + entry.name] = [status.st_size, status.st_mtime_ns, own]
    return {name: stamp for name, stamp in stamps.items() if not name.startswith(NAME)}


def _whole(folder: Path, stamps: dict[str, Stamp]) -> str:
    """Return a digest of all stamps, and of the contents of the few files that every Python reads when it starts."""
    lines = [f"{name}\0{stamp}" for name, stamp in stamps.items()]
    lines += [f"{name}\0{_digest(folder / name)}" for name in stamps if _is_read_at_start(name)]
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def _is_read_at_start(name: str) -> bool:
    return name.endswith(_READ_AT_START)


def _digest(file: Path) -> str:
    """Return a digest of a file's content, or the target of a link."""
    mode = file.lstat().st_mode
    if not stat.S_ISREG(mode):
        return f"-> {os.readlink(file)}" if stat.S_ISLNK(mode) else "special"
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()[:32]


def _store(folder: Path, stamps: dict[str, Stamp], files: dict[str, list[object]]) -> None:
    partial = folder / f"{NAME}.{os.getpid()}"
    partial.write_text(f"{_whole(folder, stamps)}\n{json.dumps(files)}\n", "utf-8")
    partial.replace(folder / NAME)


def handle(request: Request) -> Answer:
    return {"changes": changes(Path(request["folder"]))}


if __name__ == "__main__":
    serve(handle)
