"""New folders, and the templates of their files; the generated sections of their READMEs are empty."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from string import Template

from pytest_flagperf.problems import Problems

_TEMPLATES = Path(__file__).parent / "templates"


def filled(name: str, words: Mapping[str, str]) -> str:
    """Return a template with its placeholders replaced."""
    return Template((_TEMPLATES / f"{name}.template").read_text(encoding="utf-8")).substitute(words)


def of_model(model: str) -> str:
    return filled("model_readme.md", {"model": model})


def of_suite(suite: str) -> str:
    return filled("suite_readme.md", {"suite": suite})


def of_vendor_case(suite: str, vendor: str) -> str:
    return filled("case_readme.md", {"suite": suite, "vendor": vendor})


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Create a directory under a temporary name; rename it to ``path`` only if the block succeeds."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Problems([f"{path}: already exists; choose another path, or remove it first"])
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        temporary.chmod(0o755)
        if path.is_dir():
            path.rmdir()
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def created(folder: Path) -> Iterator[str]:
    """Yield the lines that list the files of a new directory."""
    yield f"{folder}:"
    yield from (f"  {path.relative_to(folder)}" for path in sorted(folder.rglob("*")) if path.is_file())
