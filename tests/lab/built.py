"""C files as shared libraries, compiled when they are first needed and kept by what they say."""

import hashlib
import os
import platform
import subprocess
from pathlib import Path

CACHE = Path(__file__).parents[2] / "build/lab"


def built(name: str, *options: str) -> Path:
    """The library made of tests/lab/<name>.c."""
    source = Path(__file__).with_name(f"{name}.c")
    words = (source.read_bytes(), platform.machine().encode(), repr(options).encode())
    library = CACHE / f"{name}-{hashlib.sha256(b' '.join(words)).hexdigest()[:16]}.so"
    if not library.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = library.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", unfinished, source, *options, "-lm"], check=True)
        unfinished.rename(library)
    return library
