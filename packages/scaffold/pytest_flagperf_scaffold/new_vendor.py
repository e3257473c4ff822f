"""Create the folder of a new vendor from templates; change nothing outside it.

docs/vendors.md describes the next steps.
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
from pytest_flagperf.catalog import FOLDER_NAME, FOLDER_NAME_RULE, Catalog, CatalogError, bundled
from pytest_flagperf.commands import tree
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.settings import find_root

from . import skeletons
from .skeletons import filled as _filled

_CHIP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
_VISIBLE = {
    "cuda": 'visible_devices = "CUDA_VISIBLE_DEVICES"  # limits a process to its devices',
    "cpu": "# visible_devices: not used; the scheduler limits a process to its cores",
}
_UV = "[uv]  # uv's settings for --runtime=venv, for example the index of the packages"
_UV_SETTINGS = {"cpu": f'{_UV}\nUV_TORCH_BACKEND = "cpu"'}
_UV_EXAMPLE = f'# {_UV}\n# UV_INDEX = "https://packages.maker.example/simple"'
_SHAPES = "1x1,1x8,2x8"


EXAMPLE = "acme --hw=X1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="name of its folder and for --vendor: lowercase letters, digits and _"
    )
    parser.add_argument("--hw", metavar="CHIP", required=True, help="the name of its first chip in cases")
    parser.add_argument("--device", default="cuda", help="the framework's device type (default: cuda)")
    parser.add_argument("--backend", help="backend of collective communication (default: nccl for cuda, gloo for cpu)")
    parser.add_argument(
        "--tool", metavar="COMMAND", help='command that prints a table of the devices, as in "maker-smi -q"'
    )
    parser.add_argument(
        "--suite",
        metavar="MODEL:FRAMEWORK",
        action="append",
        default=[],
        help="create configs for this suite at the reference scale; may be repeated",
    )
    parser.add_argument(
        "--nodes", metavar="NxP[,NxP...]", default=_SHAPES, help=f"shapes of the configs (default: {_SHAPES})"
    )
    parser.add_argument("--to", metavar="DIR", type=Path, help="create DIR/vendors/NAME (default: in the current tree)")


def run(arguments: argparse.Namespace) -> int:
    root = _vendors_root(arguments.to)
    catalog = tree.catalog()
    vendor = _new_vendor(arguments, catalog)
    folder = root / "vendors" / vendor.name
    with skeletons.new_directory(folder) as temporary:
        for name, text in _files(vendor):
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_text(text, encoding="utf-8")
    print("\n".join(_report(vendor, folder, catalog, arguments.to)))
    return 0


def _vendors_root(to: Path | None) -> Path:
    """Return the root for a new vendor's folder: ``to``, else the current tree.

    With the wheel's suites, any current folder can be a tree.
    """
    folder = to or find_root(Path.cwd()) or (Path.cwd() if bundled() else None)
    if folder is None:
        raise Problems([f"{Path.cwd()}: no suites/ or vendors/ in this folder or its parents; pass a folder with --to"])
    return folder


@dataclass(frozen=True)
class _NewVendor:
    name: str
    hw: str
    device: str
    backend: str
    tool: Sequence[str]
    suites: Sequence[str]
    shapes: Sequence[Shape]
    frameworks: Sequence[str] = ("pytorch",)

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").title()


def _new_vendor(arguments: argparse.Namespace, catalog: Catalog) -> _NewVendor:
    """Check the options; raise Problems with all that are invalid."""
    problems = [*_name_problems(arguments.name, catalog)]
    if not _CHIP.fullmatch(arguments.hw):
        problems.append(f"--hw={arguments.hw}: expected letters, digits, - and _, beginning with a letter or digit")
    backend = arguments.backend or _BACKENDS.get(arguments.device)
    if backend is None:
        problems.append(f"--device={arguments.device}: unknown backend of this device; pass --backend=NAME")
    for option in ("device", "backend"):
        if re.search(r'["\\\s]', getattr(arguments, option) or ""):
            problems.append(f"--{option}={getattr(arguments, option)}: expected one word")
    shapes: tuple[Shape, ...] = ()
    try:
        shapes = Shape.parse_list(arguments.nodes)
    except CaseError as error:
        problems += [f"--nodes={arguments.nodes}: {problem}" for problem in error.problems]
    tool = _words(arguments.tool, problems)
    folders = [folder for suite in arguments.suite if (folder := _folder_of(suite, catalog, problems))]
    if problems:
        raise Problems(problems)
    frameworks = tuple(dict.fromkeys(folder.rpartition("-")[2] for folder in folders)) or ("pytorch",)
    return _NewVendor(arguments.name, arguments.hw, arguments.device, str(backend), tool, folders, shapes, frameworks)


def _name_problems(name: str, catalog: Catalog) -> Iterator[str]:
    if not FOLDER_NAME.fullmatch(name):
        yield f"{name!r}: {FOLDER_NAME_RULE}"
    elif name in catalog.vendors:
        yield (
            f"vendor {name!r} already exists: {catalog.vendors[name].path}; for another suite, copy a folder "
            "MODEL-FRAMEWORK in it; for another vendor choose another name"
        )
    elif name in HOST_LOGS:
        yield f"{name!r}: the host already writes {name}_monitor.log; choose another name"


def _words(tool: str | None, problems: list[str]) -> Sequence[str]:
    try:
        words = shlex.split(tool or "")
    except ValueError as error:
        problems.append(f"--tool={tool}: {error}")
        return ()
    if tool is not None and not words:
        problems.append("--tool is empty: expected a command, as in --tool='maker-smi -q'")
    return words


def _folder_of(suite: str, catalog: Catalog, problems: list[str]) -> str | None:
    model, _, framework = suite.partition(":")
    try:
        return catalog.suite(model, framework).folder
    except CatalogError as error:
        problems += [f"--suite={suite}: {problem}" for problem in error.problems]
        return None


# -- files -------------------------------------------------------------------------------------------------


def _files(vendor: _NewVendor) -> Iterator[tuple[str, str]]:
    words = {"name": vendor.name, "title": vendor.title, "hw": vendor.hw}
    yield "vendor.toml", _filled("vendor.toml", words | _toml_words(vendor))
    yield "README.md", _filled("README.md", words)
    if vendor.tool:
        tool = {"tool": shlex.join(vendor.tool), "command": json.dumps(vendor.tool)}
        yield "probe.py", _filled("probe.py", words | tool)
        yield "samples/README.md", _filled("samples.md", words | tool)
    for suite in vendor.suites:
        yield f"{suite}/README.md", skeletons.of_vendor_case(":".join(suite.rsplit("-", 1)), vendor.title)
        yield f"{suite}/config/config_common.py", _filled("common.py", words)
        for shape in vendor.shapes:
            yield f"{suite}/config/config_{vendor.hw}x{shape}.py", _filled("config.py", {"about": _about(shape)})


def _toml_words(vendor: _NewVendor) -> dict[str, str]:
    maker = f"{vendor.name.upper()}_VISIBLE_DEVICES"
    return {
        "frameworks": "\n".join(_framework_table(name, vendor) for name in vendor.frameworks),
        "visible": _VISIBLE.get(vendor.device, f'# visible_devices = "{maker}"  # limits a process to its devices'),
        "uv": _UV_SETTINGS.get(vendor.device, _UV_EXAMPLE),
        "runtime": "venv" if vendor.device == "cpu" else "host",
        "scale": "reference" if vendor.suites else "small",
        "shapes": ", ".join(f'"{shape}"' for shape in vendor.shapes),
    }


def _framework_table(framework: str, vendor: _NewVendor) -> str:
    modules = '# modules = ["maker"]  # modules that each rank imports first, in this order'
    device = f'device = "{vendor.device}"  # the device type of {framework}'
    backend = f'backend = "{vendor.backend}"  # collective communication'
    return "\n".join([f"[framework.{framework}]", device, backend, modules, ""])


def _about(shape: Shape) -> str:
    cards = "One card" if shape.nproc == 1 else f"{shape.nproc} cards"
    hosts = "" if shape.nnodes == 1 else f" on each of {shape.nnodes} hosts"
    return f"{cards}{hosts}; not run yet."


# -- output ------------------------------------------------------------------------------------------------


def _report(vendor: _NewVendor, folder: Path, catalog: Catalog, to: Path | None) -> Iterator[str]:
    yield from skeletons.created(folder)
    if similar := near(vendor.name, catalog.vendors, 0.8):
        yield f"note: a vendor with a similar name exists{similar}"
    yield "Next: fill in these files, then see what would run:"
    roots = f" --roots={shlex.quote(str(to))}" if to else ""
    yield f"  pytest suites --vendor={vendor.name}{roots} --scale=small --plan"
