"""Lay out the folder of a new vendor, to be filled in; nothing outside it is touched.

docs/vendors.md goes on from there.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flagperf_driver.node.sampling.devices import HOST_LOGS
from pytest_flagperf.case import CaseError, Shape
from pytest_flagperf.catalog import VENDOR_NAME, VENDOR_NAME_WANTED, Catalog, CatalogError
from pytest_flagperf.commands import stored
from pytest_flagperf.commands.source_tree import skeletons, tree
from pytest_flagperf.commands.source_tree.skeletons import filled as _filled
from pytest_flagperf.problems import Problems, near

_CHIP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
_VISIBLE = {
    "cuda": 'visible_devices = "CUDA_VISIBLE_DEVICES"  # how a process is shown only its devices',
    "cpu": "# visible_devices: a process sees all cores, and is given its own by the scheduler",
}
_UV = "[uv]  # uv's settings for --runtime=venv, where the packages are found with them"
_UV_SETTINGS = {"cpu": f'{_UV}\nUV_TORCH_BACKEND = "cpu"'}
_UV_EXAMPLE = f'# {_UV}\n# UV_INDEX = "https://packages.maker.example/simple"'
_SHAPES = "1x1,1x8,2x8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of its folder and for --vendor: lowercase letters, digits and _")
    parser.add_argument("--hw", metavar="CHIP", required=True, help="its first chip, as cases are to call it")
    parser.add_argument("--device", default="cuda", help="the framework's device type (default: cuda)")
    parser.add_argument("--backend", help="of collective communication (default: cuda's is nccl, cpu's is gloo)")
    parser.add_argument("--tool", metavar="COMMAND", help='what prints a table of the devices, as in "maker-smi -q"')
    parser.add_argument(
        "--suite",
        metavar="MODEL:FRAMEWORK",
        action="append",
        default=[],
        help="a suite to lay out configs for, at the reference scale; may be given again",
    )
    parser.add_argument("--nodes", metavar="NxP[,NxP...]", default=_SHAPES, help=f"its shapes (default: {_SHAPES})")
    parser.add_argument("--to", metavar="DIR", type=Path, help="another root: DIR/vendors/NAME (default: the tree's)")


def run(arguments: argparse.Namespace) -> int:
    root = tree.vendors_root(arguments.to)
    catalog = tree.catalog()
    asked = _asked(arguments, catalog)
    folder = root / "vendors" / asked.name
    with stored.new_directory(folder) as made:
        for name, text in _files(asked):
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_text(text, encoding="utf-8")
    print("\n".join(_told(asked, folder, catalog, arguments.to)))
    return 0


@dataclass(frozen=True)
class _Asked:
    name: str
    hw: str
    device: str
    backend: str
    tool: Sequence[str]
    suites: Sequence[str]
    shapes: Sequence[Shape]

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").title()


def _asked(arguments: argparse.Namespace, catalog: Catalog) -> _Asked:
    """The options, or all that is wrong with them."""
    problems = [*_wrong_name(arguments.name, catalog)]
    if not _CHIP.fullmatch(arguments.hw):
        problems.append(f"--hw={arguments.hw}: letters, digits, - and _ are allowed, beginning with a letter or digit")
    backend = arguments.backend or _BACKENDS.get(arguments.device)
    if backend is None:
        problems.append(f"--device={arguments.device}: say by what its devices talk with each other: --backend=NAME")
    for option in ("device", "backend"):
        if re.search(r'["\\\s]', getattr(arguments, option) or ""):
            problems.append(f"--{option}={getattr(arguments, option)}: a word is wanted")
    shapes: tuple[Shape, ...] = ()
    try:
        shapes = Shape.parse_list(arguments.nodes)
    except CaseError as error:
        problems += [f"--nodes={arguments.nodes}: {problem}" for problem in error.problems]
    tool = _words(arguments.tool, problems)
    folders = [folder for suite in arguments.suite if (folder := _folder_of(suite, catalog, problems))]
    if problems:
        raise Problems(problems)
    return _Asked(arguments.name, arguments.hw, arguments.device, str(backend), tool, folders, shapes)


def _wrong_name(name: str, catalog: Catalog) -> Iterator[str]:
    if not VENDOR_NAME.fullmatch(name):
        yield f"{name!r}: {VENDOR_NAME_WANTED}"
    elif name in catalog.vendors:
        yield f"{name!r}: there is a vendor of this name, {catalog.vendors[name].path}"
    elif name in HOST_LOGS:
        yield f"{name!r}: the log of its devices would be the host's own, {name}_monitor.log; take another name"


def _words(tool: str | None, problems: list[str]) -> Sequence[str]:
    try:
        words = shlex.split(tool or "")
    except ValueError as error:
        problems.append(f"--tool={tool}: {error}")
        return ()
    if tool is not None and not words:
        problems.append("--tool is empty: a command is wanted, as in --tool='maker-smi -q'")
    return words


def _folder_of(suite: str, catalog: Catalog, problems: list[str]) -> str | None:
    model, _, framework = suite.partition(":")
    try:
        return catalog.suite(model, framework).folder
    except CatalogError as error:
        problems += [f"--suite={suite}: {problem}" for problem in error.problems]
        return None


def scaffold(name: str, chips: Sequence[str], shapes: Sequence[Shape]) -> Iterator[tuple[str, str]]:
    """Yield the files of a vendor whose config folders exist: its vendor.toml with these chips, and its README."""
    problems = [f"chip {chip!r}: letters, digits, - and _ are allowed" for chip in chips if not _CHIP.fullmatch(chip)]
    if name in HOST_LOGS:
        problems.append(f"{name!r}: the host's own log is {name}_monitor.log; choose another name")
    if problems:
        raise Problems(problems)
    asked = _Asked(name, chips[0], "cuda", _BACKENDS["cuda"], (), ["config folders"], shapes)
    words = {"name": name, "title": asked.title, "hw": asked.hw}
    more = "".join(f"\n[chips.{chip}]\n" for chip in chips[1:])
    yield "vendor.toml", _filled("vendor.toml", words | _toml_words(asked)) + more
    yield "README.md", _filled("README.md", words)


# -- files -------------------------------------------------------------------------------------------------


def _files(asked: _Asked) -> Iterator[tuple[str, str]]:
    words = {"name": asked.name, "title": asked.title, "hw": asked.hw}
    yield "vendor.toml", _filled("vendor.toml", words | _toml_words(asked))
    yield "README.md", _filled("README.md", words)
    if asked.tool:
        tool = {"tool": shlex.join(asked.tool), "command": json.dumps(asked.tool)}
        yield "probe.py", _filled("probe.py", words | tool)
        yield "samples/README.md", _filled("samples.md", words | tool)
    for suite in asked.suites:
        yield f"{suite}/README.md", skeletons.of_vendor_case(":".join(suite.rsplit("-", 1)), asked.title)
        yield f"{suite}/config/config_common.py", _filled("common.py", words)
        for shape in asked.shapes:
            yield f"{suite}/config/config_{asked.hw}x{shape}.py", _filled("config.py", {"about": _about(shape)})


def _toml_words(asked: _Asked) -> dict[str, str]:
    maker = f"{asked.name.upper()}_VISIBLE_DEVICES"
    return {
        "device": asked.device,
        "backend": asked.backend,
        "visible": _VISIBLE.get(
            asked.device, f'# visible_devices = "{maker}"  # how a process is shown only its devices'
        ),
        "uv": _UV_SETTINGS.get(asked.device, _UV_EXAMPLE),
        "runtime": "venv" if asked.device == "cpu" else "host",
        "scale": "reference" if asked.suites else "small",
        "shapes": ", ".join(f'"{shape}"' for shape in asked.shapes),
    }


def _about(shape: Shape) -> str:
    cards = "One card" if shape.nproc == 1 else f"{shape.nproc} cards"
    hosts = "" if shape.nnodes == 1 else f" on each of {shape.nnodes} hosts"
    return f"{cards}{hosts}; not yet run."


# -- words -------------------------------------------------------------------------------------------------


def _told(asked: _Asked, folder: Path, catalog: Catalog, to: Path | None) -> Iterator[str]:
    yield f"{folder}:"
    yield from (f"  {path.relative_to(folder)}" for path in sorted(folder.rglob("*")) if path.is_file())
    if alike := near(asked.name, catalog.vendors):
        yield f"note: there is a vendor of nearly that name{alike}"
    yield "Next: fill them in, and see what would run:"
    roots = f" --roots={shlex.quote(str(to))}" if to else ""
    yield f"  pytest suites --vendor={asked.name}{roots} --scale=small --plan"
