"""Removal of secrets from values of options, before the values are stored or shown.

Each function returns a value without its secrets. Only a value that is returned unchanged may be stored; other values
are in no file and on no screen. Which values are public is written beside what takes them: ``public=`` in
settings/options.py, ``_PUBLIC`` in docker_words.py.
"""

from __future__ import annotations

import re

from flagperf_driver import addresses
from flagperf_driver.addresses import HIDDEN

from . import docker_words

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*(@sha256:[0-9a-f]{1,64})?")
_SCHEMES = "docker|oras|library|shub|https?"
_ARCHIVES = "docker-archive|docker-daemon|oci-archive|oci"
_IMAGE_FILE = re.compile(
    rf"/[\w./+~#%=-]+|(({_SCHEMES})://|({_ARCHIVES}):(//)?)[\w./:+~%=-]+(@sha256:[0-9a-f]{{1,64}})?"
)
_PLACE = r"([\w.%-]+|\[[\w.:%]+\]|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)(:[0-9]+)?"
_HOST = re.compile(rf"\s*(\w[\w.-]*=)?([\w.][\w.@-]*@)?{_PLACE}\s*")
_KEY = re.compile(r"[^\W\d]\w*")

address = addresses.redacted
container_options = docker_words.shown


def as_given(value: str) -> str:
    """Return the value of an option that cannot be secret."""
    return value


def hidden(value: str) -> str:  # noqa: ARG001
    """Return the replacement of a hidden value."""
    return HIDDEN


def hosts(text: str) -> str:
    """Return ``[USER@]HOST[:PORT],...``; of another text only the part after its last ``@``."""
    if "@" not in text or all(_HOST.fullmatch(entry) for entry in text.split(",")):
        return text
    place = text.rpartition("@")[2]
    return f"{HIDDEN}@{place}" if re.fullmatch(rf"{_PLACE}(,{_PLACE})*", place) else HIDDEN


def image(name: str) -> str:
    """Return the name of a container image; text before an ``@`` may be a password, except before a digest."""
    harmless = is_image(name) or is_image_file(name) or not ("@" in name or "://" in name)
    return name if harmless else address(name)


def is_image(name: str) -> bool:
    """Return True if docker pull accepts this as the name of an image."""
    return _IMAGE.fullmatch(name) is not None


def is_image_file(name: str) -> bool:
    """Return True if this is the absolute path of an image, or an address as Apptainer takes them."""
    return _IMAGE_FILE.fullmatch(name) is not None


def assignment(text: str) -> str:
    """Return ``KEY=VALUE``; if the value is an address, without its secrets."""
    key, equals, value = text.partition("=")
    if not equals:
        return text if _KEY.fullmatch(text) else HIDDEN
    return f"{key if _KEY.fullmatch(key) else HIDDEN}={addresses.redacted_text(value)}"
