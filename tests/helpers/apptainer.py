"""A double of Apptainer for fast tests: it records its calls and runs programs without a container."""

import os
import shutil
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).with_name("apptainer_double.sh")


class Double:
    """The double as the first program on the PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program = folder / "bin" / "apptainer"
        self.log = folder / "calls"
        self.program.parent.mkdir()
        shutil.copy(_SCRIPT, self.program)
        monkeypatch.setenv("PATH", str(self.program.parent), prepend=os.pathsep)
        monkeypatch.setenv("DOUBLE_LOG", str(self.log))

    @property
    def calls(self) -> list[str]:
        """The first line of each call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(("exec ", "pull "))]
