"""Read ``base/configs/host.yaml`` of FlagPerf: its names and its cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .case import Case, CaseError
from .packages import need
from .problems import Problems, shown
from .stored.plan import Value

if TYPE_CHECKING:
    import yaml

_EXPECTED = 'expected NAME: value in YAML, with a number, a string or a list, or indented "name": value below'
_CHIP = "A100"
"""The chip of a case without one, whatever the vendor is."""
_WITHIN_A_HOST = "_intraserver"
TOOLKIT = "TOOLKIT"


@dataclass(frozen=True)
class HostYaml:
    """The values of the names of a host.yaml; ``lines`` has the line of each key of CASES."""

    names: Mapping[str, Value]
    lines: Mapping[str, int]


def is_yaml(file: Path) -> bool:
    return file.suffix in (".yaml", ".yml")


def load(file: Path) -> HostYaml:
    """Read a file; raise Problems with the line, without its text, which may contain a secret."""
    need("pyyaml")
    import yaml

    try:
        loader = yaml.SafeLoader(file.read_text("utf-8"))
        root = loader.get_single_node()
    except (OSError, UnicodeDecodeError) as error:
        raise Problems([f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise _unexpected(file, getattr(error, "problem_mark", None)) from error

    def scalar(node: yaml.Node) -> object:
        if node.id != "scalar":
            raise _unexpected(file, node.start_mark)
        try:
            return loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise _unexpected(file, node.start_mark) from error

    def entries(mapping: yaml.Node) -> dict[str, tuple[int, yaml.Node]]:
        found: dict[str, tuple[int, yaml.Node]] = {}
        for key, value in mapping.value:
            name, line = str(scalar(key)), key.start_mark.line + 1
            if name in found:
                raise Problems([f"{file}:{line}: {shown(name)} is set in lines {found[name][0]} and {line}; keep one"])
            found[name] = line, value
        return found

    def value(node: yaml.Node) -> object:
        if node.id == "mapping":
            return {name: scalar(below) for name, (_, below) in entries(node).items()}
        return [scalar(item) for item in node.value] if node.id == "sequence" else scalar(node)

    if root is None:
        return HostYaml({}, {})
    if root.id != "mapping":
        raise _unexpected(file, root.start_mark)
    nodes = entries(root)
    cases = nodes["CASES"][1] if "CASES" in nodes else None
    lines = {name: line for name, (line, _) in entries(cases).items()} if cases and cases.id == "mapping" else {}
    return HostYaml({name: Value(value(node), str(file), line) for name, (line, node) in nodes.items()}, lines)


def _unexpected(file: Path, mark: yaml.Mark | None) -> Problems:
    return Problems([f"{file}:{mark.line + 1}: {_EXPECTED}" if mark else f"{file}: {_EXPECTED}"])


def base_cases(entries: Mapping[str, object], hosts: int, nproc: int) -> Iterator[tuple[str, Case | CaseError]]:
    """Return each entry of CASES as a case whose model is FlagPerf's name, or with its problems."""
    for entry, framework in entries.items():
        name, _, chip = entry.partition(":")
        nnodes = 1 if name.endswith(_WITHIN_A_HOST) else hosts
        try:
            yield entry, Case.parse(":".join((name, str(framework), chip or _CHIP, str(nnodes), str(nproc), "1")))
        except CaseError as error:
            yield entry, CaseError(f"{shown(entry)}: {problem}" for problem in error.problems)
