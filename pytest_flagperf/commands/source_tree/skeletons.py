"""Templates of new READMEs for a model, a suite and a vendor's case; their generated sections are empty."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

_TEMPLATES = Path(__file__).parent / "templates"


def filled(name: str, words: Mapping[str, str]) -> str:
    """Return a template with its placeholders replaced."""
    return Template((_TEMPLATES / f"{name}.template").read_text(encoding="utf-8")).substitute(words)


def of_model(model: str) -> str:
    return filled("model_readme.md", {"model": model})


def of_suite(suite: str) -> str:
    return filled("suite_readme.md", {"suite": suite})


def of_vendor_case(suite: str, vendor: str) -> str:
    return filled("case_readme.md", {"suite": suite, "vendor": vendor})
