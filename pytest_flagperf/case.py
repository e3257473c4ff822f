"""The grammar of a case: ``model:framework[_version]:hardware:nnodes:nproc:repeat[:variant]``.

A variant has config keys with their values, ``precision-bf16+train_batch_size-8``: characters that names of folders,
ids of tests and -k allow.
"""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass, replace
from itertools import pairwise

from .problems import Problems

GRAMMAR = "model:framework[_version]:hardware:nnodes:nproc:repeat[:key-value[+key-value...]]"
FIELDS = ("model", "framework", "hardware", "nnodes", "nproc", "repeat")
_REPEAT = FIELDS.index("repeat")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_FRAMEWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*(_[A-Za-z0-9._+-]+)?")
_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)-([A-Za-z0-9._-]+)")
_FOLDER = re.compile(
    r"(?P<model>.+)_(?P<framework>[A-Za-z][^_]*(?:_[0-9][^_]*)?)_(?P<hardware>.+)"
    r"_(?P<nnodes>[1-9]\d{0,8})_(?P<nproc>[1-9]\d{0,8})_(?P<repeat>[1-9]\d{0,8})"
    rf"(?:_(?P<variant>{_PAIR.pattern}(?:[+]{_PAIR.pattern})*))?"
)
_SHAPE = re.compile(r"([1-9][0-9]{0,8})x([1-9][0-9]{0,8})")

_NAME_RULE = "letters, digits and . _ + -, beginning with a letter or a digit"
_FRAMEWORK_RULE = "letters, digits and . + -, optionally with _ and a version, as in pytorch_1.13"
_COUNT_RULE = "a whole number from 1, without a sign or leading zeros"
_PAIR_RULE = "key-value, a key of the config, and letters, digits and . _ -"


class CaseError(Problems):
    """An invalid case or shape."""


@dataclass(frozen=True, order=True)
class Shape:
    """N hosts with P processes on each, written ``NxP``."""

    nnodes: int
    nproc: int

    @property
    def cards(self) -> int:
        return self.nnodes * self.nproc

    @classmethod
    def parse(cls, text: str) -> Shape:
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise CaseError([_shape_problem(text)])
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def parse_list(cls, text: str) -> tuple[Shape, ...]:
        """Return the shapes of a list such as ``1x1,1x8``, without duplicates."""
        parts = [part.strip() for part in text.split(",")]
        problems = [_shape_problem(part) for part in parts if not _SHAPE.fullmatch(part)]
        if problems:
            raise CaseError(problems)
        return tuple(dict.fromkeys(map(cls.parse, parts)))

    def __str__(self) -> str:
        return f"{self.nnodes}x{self.nproc}"


@dataclass(frozen=True)
class Case:
    """A case; ``str()`` of a case can be parsed again.

    ``variant``: the keys that --each sets, in alphabetical order, each with its value as it was written.
    """

    model: str
    framework: str
    hardware: str
    nnodes: int
    nproc: int
    repeat: int = 1
    variant: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if problems := _problems(self._terms()):
            raise CaseError([f"case {str(self)!r}: {problem}" for problem in problems])

    @classmethod
    def parse(cls, text: str) -> Case:
        terms = text.split(":")
        problems = _problems(terms) if len(terms) - len(FIELDS) in (0, 1) else [_count_problem(terms)]
        if problems:
            raise CaseError([f"case {text!r}: {problem}" for problem in problems])
        model, framework, hardware, nnodes, nproc, repeat, *variant = terms
        pairs = [pair.partition("-") for pair in "".join(variant).split("+") if pair]
        values = tuple((key, value) for key, _, value in pairs)
        return cls(model, framework, hardware, int(nnodes), int(nproc), int(repeat), values)

    @property
    def framework_name(self) -> str:
        return self.framework.partition("_")[0]

    @property
    def framework_version(self) -> str | None:
        return self.framework.partition("_")[2] or None

    @property
    def shape(self) -> Shape:
        return Shape(self.nnodes, self.nproc)

    @property
    def folder(self) -> str:
        """The case's folder in a run directory."""
        return folder(str(self))

    @property
    def without_repeat(self) -> str:
        """The name without the number of rounds."""
        terms = self._terms()
        return ":".join([*terms[:_REPEAT], *terms[len(FIELDS) :]])

    @property
    def without_variant(self) -> Case:
        """The case whose variants a sweep compares."""
        return replace(self, variant=())

    @property
    def variant_name(self) -> str:
        """The variant as the name of the case has it; empty without one."""
        return "+".join(f"{key}-{value}" for key, value in self.variant)

    @staticmethod
    def of_folder(name: str) -> Case | None:
        """Return the case of a folder, as far as underscores in names allow; None for other names."""
        match = _FOLDER.fullmatch(name)
        terms = [match[name] for name in (*FIELDS, "variant")] if match else []
        return case_of(":".join(filter(None, terms)))

    def __str__(self) -> str:
        return ":".join(self._terms())

    def _terms(self) -> list[str]:
        return [*(str(getattr(self, name)) for name in FIELDS), *filter(None, [self.variant_name])]


def folder(name: str) -> str:
    """Return the folder of a case's name; a name in stored results may be any text."""
    return name.replace(":", "_")


def case_of(name: str) -> Case | None:
    """Return the case of a stored name; None for other names, for example of a renamed folder."""
    try:
        return Case.parse(name)
    except CaseError:
        return None


def without_repeat(name: str) -> str:
    """Return the stored name of a case without its number of rounds; other names do not change."""
    case = case_of(name)
    return case.without_repeat if case else name


def variant_of(name: str) -> str:
    """Return the variant in a stored name; empty without one."""
    case = case_of(name)
    return case.variant_name if case else ""


def folder_pattern(name: str) -> str:
    """Return a pattern of the folders of a case, by its name without the number of rounds."""
    terms = [glob.escape(term) for term in name.split(":")]
    return folder(":".join([*terms[:_REPEAT], "*", *terms[_REPEAT:]]))


def _problems(terms: list[str]) -> list[str]:
    name, framework, count = (_NAME, _NAME_RULE), (_FRAMEWORK, _FRAMEWORK_RULE), (_COUNT, _COUNT_RULE)
    rules = [name, framework, name, count, count, count]
    problems = [
        f"{field} is {term!r}; expected {rule}"
        for field, term, (pattern, rule) in zip(FIELDS, terms, rules, strict=False)
        if not pattern.fullmatch(term)
    ]
    pairs = [pair for variant in terms[len(FIELDS) :] for pair in variant.split("+")]
    problems += [f"variant has {pair!r}; expected {_PAIR_RULE}" for pair in pairs if not _PAIR.fullmatch(pair)]
    keys = [pair.partition("-")[0] for pair in pairs]
    if any(first >= second for first, second in pairwise(keys)):
        problems.append(f"variant has the keys {', '.join(keys)}; expected them in alphabetical order, each once")
    return problems


def _count_problem(terms: list[str]) -> str:
    problem = f"got {len(terms)} fields; expected the {len(FIELDS)} fields {GRAMMAR}"
    if len(terms) < len(FIELDS):
        return f"{problem}; missing: {', '.join(FIELDS[len(terms) :])}"
    return f"{problem}; too many: {', '.join(map(repr, terms[len(FIELDS) + 1 :]))}"


def _shape_problem(text: str) -> str:
    return f"shape {text!r}: expected NxP, N hosts with P processes each, as in 2x8; N and P: {_COUNT_RULE}"
