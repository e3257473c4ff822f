"""Create the harness's environment in a checkout: ``make setup`` runs it with any Python, before anything is installed.

From a folder of wheels it installs what the harness needs on this machine, and not the checkout itself: the root's
conftest.py loads that. Without wheels it installs the checkout from the package index.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_INSTALL = ("install", "--quiet", "--disable-pip-version-check")
"""The first words of a command of pip."""
_ADVICE = """\
Without a package index: in a checkout on a machine that has one, run
    make setup && .venv/bin/flagperf wheels wheels --python-version={version} --platform={platform}
Copy the folder wheels here and run
    make setup WHEELS=wheels
docs/offline.md has the details."""

_COMMAND = """\
#!{python}
import sys

sys.path.insert(0, {root!r})
from pytest_flagperf.commands import main

sys.exit(main())
"""
"""The command flagperf, of the checkout."""


def main() -> None:
    """Create the environment; end with a message if Python, the wheels or the package index do not suffice."""
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python reads this file
        sys.exit(
            f"set-up: got Python {sys.version.split()[0]} ({sys.executable}), expected >= 3.11; pass another one: make"
            " setup PYTHON=/path/to/python3"
        )
    sys.path.insert(0, str(ROOT))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the environment")
    parser.add_argument("--wheels", default="", help="folder of wheels (default: wheels of flagperf.toml, else none)")
    parser.add_argument("--dev", action="store_true", help="add the tools of this project's tests to it")
    options = parser.parse_args()
    python = str(options.folder / "bin" / "python")
    if options.dev:
        if not any(options.folder.glob("bin/pip*")):
            sys.exit(
                f"set-up: {options.folder} was made from wheels, which lack the tools of this project's tests; with a"
                " package index, run make clean and this command again"
            )
        from pytest_flagperf.runtime.pip_settings import index_settings

        os.environ.update(index_settings(os.environ))
        # The environment has uv, which takes a third of pip's time.
        uv = [python, "-m", "uv", "pip", "install", "--quiet", f"--python={python}", "--compile-bytecode"]
        _install([*uv, "--editable", f"{ROOT}[dev]"], "the package index")
    elif wheels := options.wheels or _wheels_of_settings():
        _install_wheels(options.folder, Path(wheels).absolute())
    else:
        _run([sys.executable, "-m", "venv", "--clear", str(options.folder)])
        _install([python, "-m", "pip", *_INSTALL, "--editable", str(ROOT)], "the package index")


def _wheels_of_settings() -> str:
    """Return the setting ``wheels`` of the checkout, as pytest reads it; empty without."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.settings import read_settings

    try:
        return read_settings({}, ROOT).wheels or ""
    except Problems as problems:
        sys.exit(f"set-up: {problems}")


def _install_wheels(folder: Path, wheels: Path) -> None:
    from pytest_flagperf.packages import OF_ONE_PART, requirement_name, requirements_of_this_package

    pip = next(iter(sorted(wheels.glob("pip-*.whl"))), None)
    if pip is None:
        sys.exit(f"set-up: {wheels}: no pip-*.whl in this folder.\n{_advice()}")
    # The environment gets no pip: Debian's Python has none for it without the package python3-venv.
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)])
    names = {path.name.partition("-")[0].lower() for path in wheels.glob("*.whl")}
    required = [
        line
        for line in requirements_of_this_package()
        if (name := requirement_name(line)) not in OF_ONE_PART or name in names
    ]
    own_pip = [sys.executable, f"{pip}/pip", "--python", str(folder)]
    _install([*own_pip, *_INSTALL, "--no-index", f"--find-links={wheels}", *required], str(wheels))
    command = folder / "bin" / "flagperf"
    command.write_text(_COMMAND.format(python=folder.absolute() / "bin" / "python", root=str(ROOT)), "utf-8")
    command.chmod(0o755)


def _install(command: list[str], source: str) -> None:
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return
    lines = [line.strip() for line in done.stderr.splitlines()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    sys.exit("\n".join([*errors, f"set-up: cannot install what the harness needs from {source}.", _advice()]))


def _advice() -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return _ADVICE.format(version=version, platform=sysconfig.get_platform().removeprefix("linux-"))


def _run(argv: list[str]) -> None:
    if (code := subprocess.run(argv, check=False).returncode) != 0:
        sys.exit(code)


if __name__ == "__main__":
    main()
