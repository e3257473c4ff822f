"""Import a vendor's config folders from a FlagPerf checkout, with FlagPerf's file and line of each value.

DIR is training/<vendor> of the checkout, or one <model>-<framework> folder in it. docs/coming-from-flagperf.md has an
example.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import FOLDER_NAME, FOLDER_NAME_RULE, REFERENCE, Catalog, Suite, Vendor, list_configs
from pytest_flagperf.commands.source_tree import new_vendor, tree
from pytest_flagperf.config import OUTCOMES, ConfigError, Resolved, Translated, resolve
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.stored import write_text

_NOT_IMPORTED: Mapping[str, str] = {
    "config/environment_variables.sh": "copy it to the new folder, if its variables hold for your software",
    "config/requirements.txt": "copy it to the new folder, if the ranks need its packages",
    "extern": "its functions are FlagPerf's; write the vendor's steps as docs/vendors.md describes",
    "csrc": "copy it to the new folder, if a step of yours uses the extension",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="training/<vendor> of a FlagPerf checkout")
    parser.add_argument("--name", metavar="NAME", help="the vendor's new name (default: the folder's name)")
    parser.add_argument("--overwrite", action="store_true", help="replace existing config files")
    parser.add_argument(
        "--to", metavar="ROOT", type=Path, help="write to ROOT/vendors/NAME (default: the current tree)"
    )


def run(arguments: argparse.Namespace) -> int:
    root = tree.vendors_root(arguments.to)
    catalog = tree.catalog()
    flagperf_vendor, case_folders = _folders(arguments.folder)
    name = arguments.name or flagperf_vendor.name
    if not FOLDER_NAME.fullmatch(name):
        raise Problems([f"{name!r}: {FOLDER_NAME_RULE}; set the vendor's name with --name"])
    target = root.resolve() / "vendors" / name
    if name in catalog.vendors and catalog.vendors[name].path != target:
        existing = catalog.vendors[name].path
        raise Problems([f"vendor {name!r} already exists in {existing}; remove --to, or set another name with --name"])
    cases, left_out = _cases(case_folders, flagperf_vendor, name, catalog)
    files = {target / imported.file: imported.text for imported in cases}
    _refuse_overwriting(files, overwrite=arguments.overwrite)
    scaffold = _missing_files(name, target, cases)
    for file, text in {**scaffold, **files}.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    print("\n".join(_report(cases, left_out, scaffold, target, case_folders, arguments.to)))
    return 0


@dataclass(frozen=True)
class _Imported:
    """One config file of FlagPerf, resolved."""

    suite: Suite
    case: Case
    source: Path
    resolved: Resolved

    @property
    def file(self) -> str:
        """The path of the new config file in the vendor's folder."""
        return f"{self.suite.folder}/config/config_{self.case.hardware}x{self.case.shape}.py"

    @property
    def text(self) -> str:
        return "\n".join(_lines(self)) + "\n"


# -- reading -----------------------------------------------------------------------------------------------


def _folders(folder: Path) -> tuple[Path, Sequence[Path]]:
    """Return FlagPerf's vendor folder and its case folders: all of them, or only the given one."""
    folder = folder.resolve()
    if not folder.is_dir():
        raise Problems([f"{folder}: no such directory"])
    if (folder / "config").is_dir():
        return folder.parent, [folder]
    case_folders = sorted(path.parent for path in folder.glob("*/config") if path.is_dir())
    if not case_folders:
        expected = "expected training/<vendor> of a FlagPerf checkout, or a <model>-<framework> folder in it"
        raise Problems([f"{folder}: no <model>-<framework>/config in this folder; {expected}"])
    return folder, case_folders


def _cases(
    folders: Sequence[Path], flagperf_vendor: Path, name: str, catalog: Catalog
) -> tuple[list[_Imported], dict[Path, str]]:
    """Resolve every config file of all folders; raise one error with all problems."""
    cases: list[_Imported] = []
    left_out: dict[Path, str] = {}
    problems: list[str] = []
    suites = {suite.folder.lower(): suite for suite in catalog.suites.values()}
    for folder in folders:
        suite, configs = suites.get(folder.name.lower()), list_configs(folder / "config")
        if suite is None or not configs:
            reason = "no config_<hardware>x<hosts>x<cards>.py" if suite else "no suite of this name in this tree"
            left_out[folder] = reason + (
                "" if suite else near(folder.name, [other.folder for other in suites.values()])
            )
            continue
        vendor = Vendor(name, flagperf_vendor, flagperf_vendor.parent)
        own = replace(catalog, roots=(flagperf_vendor.parent, *catalog.roots), _configs={(suite.path, name): configs})
        for hardware, shape in sorted(configs):
            case = Case(suite.model, suite.framework, hardware, shape.nnodes, shape.nproc)
            try:
                resolved = resolve(suite, vendor, case, REFERENCE, {}, catalog=own, check_data=False)
                cases.append(_Imported(suite, case, configs[hardware, shape], resolved))
            except ConfigError as error:
                problems += error.problems
    if not cases and not problems:
        problems = [f"{folder}: {reason}" for folder, reason in left_out.items()]
    if problems:
        raise Problems(dict.fromkeys(problems))
    return cases, left_out


def _refuse_overwriting(files: Mapping[Path, str], *, overwrite: bool) -> None:
    existing = [file for file in files if file.exists()]
    if existing and not overwrite:
        raise Problems(f"{file}: this file exists; --overwrite replaces it" for file in existing)


def _missing_files(name: str, target: Path, cases: Sequence[_Imported]) -> dict[Path, str]:
    """Return the files of ``flagperf new-vendor`` for a vendor without vendor.toml; no files for other vendors."""
    if (target / "vendor.toml").exists():
        return {}
    chips = list(dict.fromkeys(imported.case.hardware for imported in cases))
    shapes = sorted({imported.case.shape for imported in cases})
    return {target / file: text for file, text in new_vendor.scaffold(name, chips, shapes)}


# -- writing -----------------------------------------------------------------------------------------------


def _lines(imported: _Imported) -> Iterator[str]:
    """Yield the lines of a config file: each value below a comment with FlagPerf's line."""
    source = f"{imported.source.parents[2].name}/{imported.source.parents[1].name}/config"
    case = imported.case
    yield f'"""{case.hardware}, {case.shape}: from FlagPerf\'s {source}, by flagperf import-vendor."""'
    translated = {item.where: item for item in imported.resolved.translated}
    for key, value in imported.resolved.values.items():
        if value.layer == "vendor" and key != "vendor":
            yield ""
            yield f"# {_origin(translated.get(value.where), value.where)}"
            yield f"{key} = {value.value!r}"
    for item in imported.resolved.translated:
        if item.outcome != "applied":
            yield ""
            yield f"# {_origin(item, item.where)}"
            yield f"# {item.outcome}: {item.effect}"


def _origin(item: Translated | None, where: str) -> str:
    """Return FlagPerf's name, value and line for a config value."""
    if item is None:
        return f"the value of FlagPerf's _base.py, {where}"
    return f"{item.key} = {item.value}, {where.rpartition('/')[2]}"


def _report(
    cases: Sequence[_Imported],
    left_out: Mapping[Path, str],
    scaffold: Mapping[Path, str],
    target: Path,
    folders: Sequence[Path],
    to: Path | None,
) -> Iterator[str]:
    yield f"{target}:"
    yield from (f"  {file.relative_to(target)}" for file in scaffold)
    for imported in cases:
        outcomes = [item.outcome for item in imported.resolved.translated]
        counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in OUTCOMES)
        yield f"  {imported.file}: {counts if outcomes else 'no FlagPerf names to translate'}"
    yield from (f"left out: {folder}: {reason}" for folder, reason in left_out.items())
    for folder in folders:
        if folder not in left_out:
            paths = [(folder / path, advice) for path, advice in _NOT_IMPORTED.items() if (folder / path).exists()]
            yield from (f"not imported: {path}: {advice}" for path, advice in paths)
    if scaffold:
        yield f"Next: fill in {target / 'vendor.toml'}, which was made from a template."
    yield "Next: see what would run:"
    roots = f" --roots={to}" if to else ""
    shapes = ",".join(dict.fromkeys(str(imported.case.shape) for imported in cases))
    hardware = cases[0].case.hardware
    yield f"  pytest suites --vendor={target.name}{roots} --hw={hardware} --scale=reference --nodes={shapes} --plan"
