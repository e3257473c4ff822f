"""Which image a vendor's containers are made of: one that vendor.toml names, or one that is built here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import redaction
from ..problems import near, shown
from .toml_reader import where

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*(_[A-Za-z0-9._+-]+)?")


@dataclass(frozen=True)
class VendorImage:
    """One of the two, and the place that says so."""

    by: str
    name: str | None = None
    folder: Path | None = None


def find(named: Mapping[str, str], file: Path, framework: str) -> VendorImage | None:
    """``framework`` may end with its version: what is for exactly that wins, and of two such what vendor.toml names."""
    place, folder = f"vendors/{file.parent.name}", file.parent / "images" / framework
    if framework in named:
        return VendorImage(f"[images] of {place}/vendor.toml", named[framework])
    if (folder / "Dockerfile").is_file():
        return VendorImage(f"{place}/images/{framework}/Dockerfile", folder=folder)
    name = framework.partition("_")[0]
    return VendorImage(f"{name} in [images] of {place}/vendor.toml", named[name]) if name in named else None


def unused(named: Mapping[str, str], file: Path, framework: str, frameworks: Collection[str]) -> list[str]:
    """Files to build an image that is named as well, and images of frameworks that no suite is written in."""
    found = []
    if framework in named and (file.parent / "images" / framework / "Dockerfile").is_file():
        at, place = where(file, "images", framework), f"vendors/{file.parent.name}/images/{framework}"
        found.append(f"{at}: {named[framework]} is used; {place} is not built")
    return found + [
        f"{_at(file, key)}: there is no suite of this framework{near(name, frameworks)}"
        for key in named
        if (name := key.partition("_")[0]) not in frameworks
    ]


def problems(named: Mapping[str, str], file: Path) -> Iterator[str]:
    """What is wrong with the names, each with its line."""
    framework = "wanted is a framework, or one with its version after a _, as in pytorch_2.10"
    name = "wanted is an image's name, as docker pull takes it: maker/pytorch:1"
    for key, image in named.items():
        if not _NAME.fullmatch(key):
            yield f"{_at(file, key)}: {framework}"
        if not redaction.is_image(image):
            yield f"{_at(file, key)} is {shown(redaction.image(image))}; {name}"


def _at(file: Path, key: str) -> str:
    return f"{where(file, 'images', key)}: images.{key}"
