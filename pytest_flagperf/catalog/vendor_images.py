"""The image of a vendor's containers: named in vendor.toml, or built from a Dockerfile in the vendor's folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import redaction
from ..problems import shown
from .toml_reader import where

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*(_[A-Za-z0-9._+-]+)?")


@dataclass(frozen=True)
class VendorImage:
    """The name of an image or the folder of its Dockerfile; ``by`` is the file that sets it."""

    by: str
    name: str | None = None
    folder: Path | None = None


def find(named: Mapping[str, str], file: Path, framework: str) -> VendorImage | None:
    """Return the image for a framework; ``framework`` may end with ``_`` and a version.

    An image for this version precedes an image for all versions. A name in vendor.toml precedes a Dockerfile.
    """
    place, folder = f"vendors/{file.parent.name}", file.parent / "images" / framework
    if framework in named:
        return VendorImage(f"[images] of {place}/vendor.toml", named[framework])
    if (folder / "Dockerfile").is_file():
        return VendorImage(f"{place}/images/{framework}/Dockerfile", folder=folder)
    name = framework.partition("_")[0]
    return VendorImage(f"{name} in [images] of {place}/vendor.toml", named[name]) if name in named else None


def problems(named: Mapping[str, str], file: Path) -> Iterator[str]:
    """Yield the invalid frameworks and image names, each with its line."""
    framework = "expected a framework, optionally with a version, as in pytorch_2.10"
    name = "expected an image name for docker pull, as in maker/pytorch:1"
    for key, image in named.items():
        if not _NAME.fullmatch(key):
            yield f"{_at(file, key)}: {framework}"
        if not redaction.is_image(image):
            yield f"{_at(file, key)} is {shown(redaction.image(image))}; {name}"


def _at(file: Path, key: str) -> str:
    return f"{where(file, 'images', key)}: images.{key}"
