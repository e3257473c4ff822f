"""The code folder of a job: the code of the case, the boot file, packages, and the script that installs them."""

from __future__ import annotations

import gzip
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.problems import Problems

from . import job
from .config import ModelArtsConfig
from .job import layout

_ARCHITECTURE = re.compile(r"[_-](x86_64|aarch64)\.(?:whl|run)$")
_JOB = Path(job.__file__).parent
_WHEEL, _INSTALLER = ".whl", ".run"


def code_files(config: ModelArtsConfig, code: Code) -> dict[str, bytes | Path]:
    """Return the files of the code folder by their names."""
    files: dict[str, bytes | Path] = {
        layout.CODE_ARCHIVE: gzip.compress(code.raw, mtime=0),
        layout.BOOT: (_JOB / layout.BOOT).read_bytes(),
        **{f"{layout.JOB_CODE}{path.name}": path.read_bytes() for path in sorted(_JOB.glob("*.py"))},
    }
    packages = packages_of(config)
    files |= {f"{layout.PACKAGES}/{path.name}": path for path in packages}
    if script := pre_start(config, [path.name for path in packages]):
        files[layout.PRE_START] = script.encode()
    return files


def packages_of(config: ModelArtsConfig) -> list[Path]:
    """Return the wheels and installers of the settings' folder; Problems if they are for several architectures."""
    if config.packages is None:
        return []
    folder = Path(config.packages)
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix in (_WHEEL, _INSTALLER))
    except OSError as error:
        raise Problems([f"{folder}: cannot be read: {error.strerror}"]) from error
    if not found:
        raise Problems([f"{folder}: contains no file *{_WHEEL} or *{_INSTALLER}"])
    by_architecture = {match[1]: path.name for path in found if (match := _ARCHITECTURE.search(path.name))}
    if len(by_architecture) > 1:
        names = ", ".join(by_architecture.values())
        raise Problems([f"{folder}: packages for several architectures: {names}; keep those of the image's"])
    return found


def pre_start(config: ModelArtsConfig, packages: list[str]) -> str:
    """Return the script that ModelArts runs before the boot file; empty if nothing has to be done."""
    variables: Mapping[str, str | int | None] = {
        **config.environment,
        "GLOG_v": config.glog_level,
        "ASCEND_GLOBAL_LOG_LEVEL": config.device_log_level,
    }
    exports = [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items() if value is not None]
    if config.device_log_level is not None:
        exports += ["export ASCEND_GLOBAL_EVENT_ENABLE=0", "export ASCEND_SLOG_PRINT_TO_STDOUT=0"]
    wheels = [name for name in packages if name.endswith(_WHEEL)]
    installers = [name for name in packages if name.endswith(_INSTALLER)]
    if not (exports or packages):
        return ""
    lines = ["#!/bin/bash", f'packages=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)/{layout.PACKAGES}']
    if wheels:
        paths = " ".join(f'"$packages"/{shlex.quote(name)}' for name in wheels)
        lines.append(f"pip install {paths} || {_fail('the wheels could not be installed')}")
    for name in installers:
        path = f'"$packages"/{shlex.quote(name)}'
        lines.append(f"sudo chmod +x {path} && sudo {path} --upgrade || {_fail(f'{name} could not be installed')}")
    return "\n".join([*lines, *exports, ""])


def _fail(sentence: str) -> str:
    return f"{{ echo {shlex.quote(f'pytest-flagperf: {sentence}')} >&2; exit 1; }}"
