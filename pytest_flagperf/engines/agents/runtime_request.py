"""A case's request to its runtime: packages, variables and an image, from suite, vendor and settings."""

from __future__ import annotations

import shlex
from pathlib import Path

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, Suite, Vendor
from pytest_flagperf.runtime import Image, RuntimeRequest, runtimes
from pytest_flagperf.runtime.requirements import conflicting
from pytest_flagperf.settings import Settings

_FILE = "requirements.txt"


def runtime_request(settings: Settings, catalog: Catalog, case: Case, vendor: Vendor, runtime: str) -> RuntimeRequest:
    """Return the request of a case, without the id of the run."""
    suite = catalog.suite(case.model, case.framework)
    kind, own = runtimes()[runtime], catalog.case_folder(suite, vendor)
    of_vendor = (vendor.path / "images" / suite.framework / _FILE, own / "config" / _FILE)
    environment = own / "config" / "environment_variables.sh"
    return RuntimeRequest(
        case.framework_name,
        requirements(catalog, suite, *of_vendor),
        python=settings.python if kind.takes_python else None,
        pip_source=settings.pip_source,
        uv_settings=tuple(vendor.toml.uv.items()),
        environment=tuple(vendor.environment.items()),
        environment_file=environment if environment.is_file() else None,
        image=_image(settings, catalog, case, vendor) if kind.uses_images else None,
        extension=extension if (extension := own / "csrc").is_dir() else None,
    )


def _image(settings: Settings, catalog: Catalog, case: Case, vendor: Vendor) -> Image:
    """Return the image of the case's container and its options: from the settings, else from the vendor."""
    container, vendors_image = vendor.toml.container, vendor.image(case.framework)
    own = catalog.case_folder(catalog.suite(case.model, case.framework), vendor)
    given, frameworks = settings.image, {framework for _, framework in catalog.suites}
    words, unreadable = _container_options(settings)
    return Image(
        image=given or (vendors_image.name if vendors_image else None),
        image_source=settings.as_written("image") if given else vendors_image.by if vendors_image else "",
        folder=vendors_image.folder if vendors_image and not given else None,
        expected=f"vendors/{vendor.name}/images/{case.framework}/Dockerfile",
        extras=own if own.is_dir() else None,
        options=(*container.options, *words),
        unreadable=unreadable,
        options_source=_options_source(settings, vendor),
        shm_size=settings.shm_size or container.shm_size,
        shm_size_source=settings.as_written("shm_size"),
        privileged_source=f"vendors/{vendor.name}/vendor.toml" if "--privileged" in container.options else None,
        unused=() if given else tuple(vendor.unused_images(case.framework, frameworks)),
    )


def _container_options(settings: Settings) -> tuple[list[str], str]:
    """Return the words of all given options, split like a shell does, and the reason if they cannot be split."""
    try:
        return [word for text in settings.container_opt for word in shlex.split(text)], ""
    except ValueError as error:
        return [], f"{settings.as_written('container_opt')}: {error}"


def _options_source(settings: Settings, vendor: Vendor) -> str:
    """Return where the container's options were given, for messages."""
    given = [settings.as_written("container_opt")] if settings.container_opt else []
    return " and ".join([*given, *([f"vendors/{vendor.name}/vendor.toml"] if vendor.toml.container.options else [])])


def requirements(catalog: Catalog, suite: Suite, *more: Path) -> tuple[Path, ...]:
    """Return the requirements files of a case's environment: of its suite, its vendor (more) and of other suites.

    The suites of a framework share one environment. A suite whose requirements conflict with those of another suite has
    its own, and so does a case whose vendor's requirements conflict with those of another suite.
    """
    others = [other.path / _FILE for _, other in sorted(catalog.suites.items()) if other.framework == suite.framework]
    own = [file for file in (suite.path / _FILE, *more) if file.is_file()]
    of_framework = [file for file in others if file.is_file()]
    conflicts = conflicting(of_framework)
    shared = dict.fromkeys([*(file for file in of_framework if file not in conflicts), *own])
    return tuple(own if conflicts.intersection(own) or conflicting(shared) else shared)
