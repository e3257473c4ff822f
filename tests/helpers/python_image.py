"""A root file system with Python, pip and bash, built from the Python of the tests without a registry."""

import ensurepip
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

_LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "site-packages", "__pycache__")


def python_files() -> bytes:
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}").resolve()
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    extensions = sorted((library / "lib-dynload").glob("*.so"))
    bash = Path(shutil.which("bash") or "/bin/bash")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path in sorted({python, bash, *_libraries([python, bash, *extensions])}):
            tar.add(os.path.realpath(path), arcname=str(path))
        for path in _modules(library):
            tar.add(path, arcname=str(path))
        _unpack(_pip(), library / "site-packages", tar)
        link = tarfile.TarInfo("usr/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, str(python)
        tar.addfile(link)
    return stream.getvalue()


def _libraries(programs: list[Path]) -> Iterator[Path]:
    done = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False)
    yield from (Path(path) for path in re.findall(r"(?:=>\s+|^\t)(/\S+) \(", done.stdout, re.MULTILINE))


def _modules(library: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(library):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith("config-")]
        yield from (Path(folder, name) for name in names if not name.endswith((".pyc", ".a")))


def _pip() -> Path:
    return next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))


def _unpack(wheel: Path, target: Path, tar: tarfile.TarFile) -> None:
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            entry = tarfile.TarInfo(str(target / name))
            entry.size, entry.mode = len(packed.read(name)), 0o644
            tar.addfile(entry, io.BytesIO(packed.read(name)))
