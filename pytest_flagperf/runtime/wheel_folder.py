"""A folder of wheels: the packages in it, and the packages that they depend on."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from . import RuntimeSetupError

Dependencies = Mapping[str, Sequence[Requirement]]
"""What each package of the folder depends on, by its canonical name."""


def read_wheels(folder: str) -> Dependencies:
    """Return the packages in the folder with their dependencies; RuntimeSetupError if a wheel cannot be read."""
    found: dict[str, list[Requirement]] = {}
    for file in sorted(Path(folder).glob("*.whl")):
        try:
            found.setdefault(parse_wheel_filename(file.name)[0], []).extend(_dependencies(file))
        except (InvalidWheelFilename, InvalidRequirement, OSError, zipfile.BadZipFile) as error:
            raise RuntimeSetupError(f"{file}: not a usable wheel ({error}); replace or remove it") from error
    return found


def with_dependencies(
    required: Sequence[Requirement], wheels: Dependencies, lacks: Collection[str], markers: Mapping[str, str]
) -> list[Requirement]:
    """Return the required packages and their dependencies, as far as the interpreter lacks them.

    ``lacks`` has the canonical names of the packages that it lacks.
    """
    found: dict[str, Requirement] = {}
    left = [*required]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in lacks and requirement_text(requirement) not in found:
            found[requirement_text(requirement)] = requirement
            left += [one for one in wheels.get(name, ()) if applies(one, markers, requirement.extras)]
    return list(found.values())


def applies(requirement: Requirement, markers: Mapping[str, str], extras: Iterable[str] = ()) -> bool:
    """Return True if an interpreter with these markers needs the package, with the extras of what depends on it."""
    environment = {**{name: str(value) for name, value in default_environment().items()}, **markers}
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras))


def requirement_text(requirement: Requirement) -> str:
    """Return the requirement without its marker, as a word for an installer."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def _dependencies(file: Path) -> Iterator[Requirement]:
    with zipfile.ZipFile(file) as archive:
        metadata = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata[0]).decode("utf-8", "replace") if metadata else ""
    yield from map(Requirement, HeaderParser().parsestr(text).get_all("Requires-Dist", []))
