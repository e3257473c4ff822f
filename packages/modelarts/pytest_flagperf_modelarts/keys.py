"""The keys of an account: from the environment, or from a file that only its owner can read."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_flagperf.problems import Problems

ACCESS, SECRET, TOKEN = "HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN"
_MISSING = (
    f"no keys: set {ACCESS} and {SECRET}, or keys = FILE in [engines.modelarts], a file with the lines {ACCESS}=... and"
)


@dataclass(frozen=True)
class Keys:
    """An access key and its secret. No value is in the ``repr``, which a log may contain."""

    access: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


def read_keys(file: Path | None, environment: Mapping[str, str] = os.environ, fallback: Keys | None = None) -> Keys:
    """Return the keys of the environment, else those of the file, else ``fallback``; Problems without keys."""
    given = {name: environment[name] for name in (ACCESS, SECRET, TOKEN) if environment.get(name)}
    if ACCESS in given or SECRET in given:
        where = "the environment"
    elif file is not None:
        given, where = _in_file(file), str(file)
    elif fallback is not None:
        return fallback
    else:
        raise Problems([f"{_MISSING} {SECRET}=..."])
    missing = [name for name in (ACCESS, SECRET) if not given.get(name)]
    if missing:
        raise Problems([f"{where}: {' and '.join(missing)} not found; expected {ACCESS} and {SECRET}"])
    bad = [name for name, value in given.items() if not value.isascii() or not value.isprintable() or " " in value]
    if bad:
        raise Problems([f"{where}: {', '.join(bad)}: expected printable characters without spaces"])
    return Keys(given[ACCESS], given[SECRET], given.get(TOKEN, ""))


def _in_file(file: Path) -> dict[str, str]:
    """Return the NAME=VALUE lines of a file; a message never contains a line of it."""
    try:
        mode = file.stat().st_mode
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise Problems([f"{file}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise Problems([f"{file}: not UTF-8; expected lines NAME=VALUE"]) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Problems([f"{file}: other users can read the keys (mode {mode & 0o777:o}); run chmod 600 {file}"])
    values = {}
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or name.strip() not in (ACCESS, SECRET, TOKEN):
            raise Problems([f"{file}:{number}: expected {ACCESS}=, {SECRET}= or {TOKEN}= with its value"])
        values[name.strip()] = value.strip().strip("'\"")
    return values
