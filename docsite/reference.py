"""The pages that are generated from the code: options, keys, figures, verdicts, files and commands."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from docsite.tables import dataclass_keys, module_keys, table, type_in_toml
from flagperf_driver.measuring.loop import Measured
from flagperf_driver.node.logs import ranges
from flagperf_driver.training.profile import StepBytes
from pytest_flagperf.catalog.suite import (
    DataItem,
    Goal,
    MetricTable,
    SuiteFigure,
)
from pytest_flagperf.catalog.vendor import Chip, ContainerDefaults, FrameworkNames, VendorToml
from pytest_flagperf.commands import all_commands, parser
from pytest_flagperf.expected import Expected, KnownProblem
from pytest_flagperf.hooks import installed_plugins
from pytest_flagperf.hosts.cluster import ClusterConfig
from pytest_flagperf.kind import criteria, markers
from pytest_flagperf.kinds.measurement.suite import MeasurementScale, MeasurementTable
from pytest_flagperf.kinds.training.suite import TrainingScale, TrainingTable
from pytest_flagperf.results.figures.kinds import EFFICIENCY, FIGURES, SPEEDUP
from pytest_flagperf.results.logs import range_texts
from pytest_flagperf.results.measured.consistency import PAIRS
from pytest_flagperf.results.measured.profile import Profile
from pytest_flagperf.results.measured.validity import WARNINGS
from pytest_flagperf.results.tables.columns import COLUMNS
from pytest_flagperf.results.verdicts.verdict import OF_EVERY_KIND
from pytest_flagperf.settings.options import COMMAND_LINE_OPTIONS, GROUPS, OPTIONS, SITE, Option
from pytest_flagperf.stored.layout import FILES
from pytest_flagperf.stored.plan import LeftOutTimeLimits, Price

REPO = Path(__file__).resolve().parent.parent
_NOTE = "Generated from the code of this version."


@dataclass(frozen=True)
class _Table:
    """A table of a TOML file: its title, and the dataclass that it becomes."""

    title: str
    of: type


_VENDOR_TOML = (
    _Table("The file", VendorToml),
    _Table("[framework.NAME]", FrameworkNames),
    _Table("[chips.NAME]", Chip),
    _Table("[container]", ContainerDefaults),
    _Table("[[known_problem]]", KnownProblem),
)
_SUITE_TOML = (
    _Table("The file", TrainingTable),
    _Table("[metric]", MetricTable),
    _Table("[scales.NAME]", TrainingScale),
    _Table("[[scales.NAME.data]]", DataItem),
    _Table("[scales.NAME.left_out]", LeftOutTimeLimits),
    _Table("[goal]", Goal),
    _Table('The file of a suite with kind = "measurement"', MeasurementTable),
    _Table("[figures.NAME] of a measurement", SuiteFigure),
    _Table("[scales.NAME] of a measurement", MeasurementScale),
)
_RECORDS = (
    _Table("The profile of a step", Profile),
    _Table("bytes of a profile", StepBytes),
    _Table("The record MEASURED of a point of a measurement", Measured),
)
_CONFIGS = {
    "Keys of all frameworks": "flagperf_driver/defaults.py",
    "Keys of PyTorch": "flagperf_driver/pytorch/defaults.py",
    "Keys of TensorFlow 2": "flagperf_driver/tensorflow2/defaults.py",
    "Keys of measurements": "flagperf_driver/measuring/defaults.py",
}


def pages() -> dict[str, str]:
    """Return the generated pages by name; their links are relative to docs/."""
    made = {
        "reference/options": _options(),
        "reference/flagperf-toml": _settings(),
        "reference/config": _config(),
        "reference/vendor-toml": _toml("vendor.toml", "../vendors.md#vendortoml", _VENDOR_TOML),
        "reference/suite-toml": _toml("suite.toml", "../models.md#suitetoml", _SUITE_TOML),
        "reference/figures": _figures(),
        "reference/records": _records(),
        "reference/verdicts": _verdicts(),
        "reference/files": _files(),
        "reference/commands": _commands(),
    }
    links = "\n".join(f"* [{_title(text)}]({name.removeprefix('reference/')}.md)" for name, text in made.items())
    made["reference/index"] = f"# Reference\n\n{_NOTE}\n\n{links}\n"
    return {**made, **_lists()}


def _title(text: str) -> str:
    return text.splitlines()[0].removeprefix("# ")


# -- options and keys ----------------------------------------------------------------------------------------


def _options() -> str:
    parts = [
        "# Options of pytest\n",
        f"{_NOTE} Each option is also a key of [flagperf.toml](flagperf-toml.md), without the leading dashes. "
        "[Usage](../using.md) describes how they work together.\n",
    ]
    for group in GROUPS:
        of_group = [option for option in COMMAND_LINE_OPTIONS if option.group == group]
        rows = ([f"`{_written(option)}`", _default(option), _sentence(option.help)] for option in of_group)
        parts.append(f"## {_group_title(group)}\n\n{table(['option', 'default', 'meaning'], rows)}")
    rows = ([f"`-m {name}`", f"only the tests that judge: {meaning}"] for name, meaning in markers().items())
    parts.append(f"## Markers\n\n{table(['option', 'meaning'], rows)}")
    return "\n".join(parts)


def _group_title(group: str) -> str:
    return group.partition(":")[0].removeprefix("flagperf, ").capitalize()


def _written(option: Option) -> str:
    value = option.metavar or "|".join(option.choices)
    return f"--{option.name}" + (f"={value}" if value else "")


def _default(option: Option) -> str:
    if option.flag:
        return "off"
    return f"`{option.default}`" if option.default not in (None, ()) else ""


def _settings() -> str:
    installed_plugins()  # then the packages of our wheel can be imported, also in a checkout
    from pytest_flagperf_slurm.config import SlurmConfig

    tables = (
        _Table("[cluster]", ClusterConfig),
        _Table("[slurm]", SlurmConfig),
        _Table("[[expected]]", Expected),
        _Table("[price]", Price),
    )
    parts = [
        "# Keys of flagperf.toml\n",
        f"{_NOTE} The file is beside the suites; `[tool.flagperf]` of `pyproject.toml` has the same keys. "
        "[Usage](../using.md#options) describes which value has priority.\n",
        "## Settings of a site\n",
        table(
            ["key", "default", "meaning"],
            ([f"`{one.name}`", _default(one), _choices(one)] for one in OPTIONS if one.group == SITE),
        ),
        "## Keys that are also options\n",
        "All [options of pytest](options.md) are keys, without the leading dashes: "
        + ", ".join(f"`{option.name}`" for option in COMMAND_LINE_OPTIONS)
        + ".\n",
    ]
    return "\n".join([*parts, *_tables(tables)])


def _choices(option: Option) -> str:
    allowed = " or ".join(f"`{choice}`" for choice in option.choices)
    return _sentence(option.help) + (f"; allowed: {allowed}" if allowed else "")


def _tables(tables: Iterable[_Table]) -> Iterator[str]:
    for one in tables:
        keys = dataclass_keys(one.of)
        rows = ([f"`{key.name}`", type_in_toml(key.type), key.shown_default, _sentence(key.meaning)] for key in keys)
        yield f"## {one.title}\n\n{table(['key', 'type', 'default', 'meaning'], rows)}"


def _toml(file: str, guide: str, tables: Iterable[_Table]) -> str:
    return "\n".join([f"# Keys of {file}\n", f"{_NOTE} [An example with comments]({guide}).\n", *_tables(tables)])


def _config() -> str:
    parts = [
        "# Keys of a config\n",
        f"{_NOTE} A suite sets these keys in `config/_base.py`. A vendor's file and `--set KEY=VALUE` may change "
        "the keys with *yes*, and those that the suite lists in `mutable_params.py`.\n",
    ]
    for title, file in _CONFIGS.items():
        parts.append(f"## {title}\n")
        mutable, sections = module_keys(REPO / file)
        for heading, keys in sections.items():
            rows = (
                [
                    f"`{key.name}`",
                    f"`{key.default}`",
                    _allowed(key.type),
                    "yes" if key.name in mutable else "no",
                    _sentence(key.meaning),
                ]
                for key in keys
            )
            parts.append(f"### {heading}\n" if heading else "")
            parts.append(table(["key", "default", "allowed values", "vendor may change", "meaning"], rows))
    return "\n".join(parts)


def _allowed(of_type: str) -> str:
    choices = re.findall(r'"(\w[\w-]*)"', of_type)
    return ", ".join(f"`{choice}`" for choice in choices)


# -- results -------------------------------------------------------------------------------------------------


def _figures() -> str:
    rows = [
        [f"`{name}`", kind.unit, _better(kind.direction), _sentence(kind.meaning)] for name, kind in FIGURES.items()
    ]
    rows += [
        ["`speedup`", "x", "higher", _sentence(SPEEDUP)],
        ["`efficiency`", "share", "higher", _sentence(EFFICIENCY)],
    ]
    heads = ["figure", "unit", "better", "meaning"]
    columns = ", ".join(f"`{column}`" for column in COLUMNS)
    return "\n".join(
        [
            "# Figures\n",
            f"{_NOTE} [What is measured, and how](../measuring.md) describes the methods. A suite replaces `samples` "
            "by its own unit, such as `images`. The metric of a suite is a figure, too; `suite.toml` has its unit and "
            "direction.\n",
            table(heads, rows),
            "## Columns of results.csv\n",
            f"{columns}.\n",
        ]
    )


def _better(direction: str | None) -> str:
    return direction or "neither"


def _records() -> str:
    parts = ["# Profiles and points\n", f"{_NOTE} Seconds, calls and bytes are those of one step or iteration.\n"]
    for one in _RECORDS:
        rows = ([f"`{key.name}`", _sentence(key.meaning)] for key in dataclass_keys(one.of) if key.meaning)
        parts.append(f"## {one.title}\n\n{table(['field', 'meaning'], rows)}")
    return "\n".join(parts)


def _verdicts() -> str:
    rows = [[f"`{name}`", "any test", _sentence(passes)] for name, passes in OF_EVERY_KIND.items()]
    for criterion in criteria().values():
        rows += [
            [f"`{name}`", f"`test_{criterion.name}`", _sentence(passes)] for name, passes in criterion.meanings.items()
        ]
    warnings = ([f"`{name}`", _sentence(meaning)] for name, meaning in WARNINGS.items())
    return "\n".join(
        [
            "# Verdicts and validity warnings\n",
            f"{_NOTE} `[[expected]]` tables name verdicts: [Expected failures](../results.md#expected-failures).\n",
            table(["verdict", "judged by", "passes if"], rows),
            "## Validity warnings\n",
            "A round with a validity warning is invalid: it is not compared, and fails with `--strict`. "
            "[Validity warnings](../measuring.md#validity-warnings) has what does not count.\n",
            table(["kind", "condition"], warnings),
            "## Pairs of figures\n",
            "The verdict `consistent` compares these figures, each [measured in two ways]"
            "(../measuring.md#figures-that-are-measured-in-two-ways).\n",
            table(
                ["pair", "figure", "against", "tolerance"],
                ([f"`{pair.name}`", pair.figure, pair.against, str(pair.tolerance)] for pair in PAIRS),
            ),
            "## Ranges of values\n",
            "[Ranges of values](../measuring.md#ranges-of-values) describes what happens outside a range.\n",
            table(["source", "quantity or field", "range"], _ranges()),
        ]
    )


def _ranges() -> Iterator[list[str]]:
    """Yield a row for each source and range, with all quantities that have it."""
    sources = {"host": {**ranges.HOST, **ranges.LOAD}, "device": ranges.DEVICE, **ranges.LOGGED}
    for source, quantities in sources.items():
        for allowed in dict.fromkeys(quantities.values()):
            names = ", ".join(f"`{name}`" for name, range_ in quantities.items() if range_ == allowed)
            yield [source, names, range_texts.range_text(allowed)]


def _files() -> str:
    parts = ["# Files and logs of a run\n", f"{_NOTE} `--reports` sets the folder of the runs.\n"]
    for folder, files in FILES.items():
        rows = ([f"`{name}`", _sentence(meaning)] for name, meaning in files.items())
        parts.append(f"## {folder}\n\n{table(['file', 'contents'], rows)}")
    return "\n".join(parts)


# -- commands ------------------------------------------------------------------------------------------------


def _commands() -> str:
    commands = all_commands()
    main = parser(commands)
    parts = ["# The flagperf command\n", f"{_NOTE} [Results](../results.md) shows how the commands are used.\n"]
    parts.append(_help(main))
    (choices,) = (action.choices for action in main._actions if isinstance(action, argparse._SubParsersAction))
    for name in commands:
        parts.append(f"## flagperf {name}\n")
        parts.append(_help(choices[name]))
    return "\n".join(parts)


def _help(of: argparse.ArgumentParser) -> str:
    of.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
    return f"```text\n{of.format_help().rstrip()}\n```\n"


# -- suites and vendors --------------------------------------------------------------------------------------


def _lists() -> Mapping[str, str]:
    """Return the pages that list the suites and the vendors."""
    return {
        "suites/index": "# Models\n\nEach page has the model's source, data and targets, and its results.\n\n"
        + _links("suites/*/README.md", "../suites"),
        "vendors/index": "# Vendors\n\nEach page has the vendor's devices, tools and configs.\n\n"
        + _links("vendors/*/README.md", "../vendors"),
    }


def _links(pattern: str, folder: str) -> str:
    files = sorted(REPO.glob(pattern))
    return "".join(
        f"* [{_title(file.read_text(encoding='utf-8'))}](../{folder}/{file.parent.name}/README.md)\n" for file in files
    )


def _sentence(text: str) -> str:
    """Return a description as the text of a table's cell."""
    text = " ".join(text.split()).rstrip(".")
    if text[:2].istitle():
        text = text[0].lower() + text[1:]
    return re.sub(r"``([^`]+)``", r"`\1`", text)
