"""What of an option's value may be stored and shown.

Each function takes a value and returns it without its secrets. A value that is returned unchanged holds no secret and
may be stored. Everything else stays with the user: it is in no file and on no screen.
"""

from __future__ import annotations

import re

from flagperf_driver import addresses
from flagperf_driver.addresses import HIDDEN

from . import docker_run_options

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*(@sha256:[0-9a-f]{1,64})?")
_PLACE = r"([\w.%-]+|\[[\w.:%]+\]|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)(:[0-9]+)?"
_HOST = re.compile(rf"\s*(\w[\w.-]*=)?([\w.][\w.@-]*@)?{_PLACE}\s*")
_KEY = re.compile(r"[^\W\d]\w*")

address = addresses.redacted
container_options = docker_run_options.shown


def as_given(value: str) -> str:
    """Return a value of a kind that cannot be secret."""
    return value


def hidden(value: str) -> str:  # noqa: ARG001
    """Return the sign for a hidden value."""
    return HIDDEN


def hosts(text: str) -> str:
    """Return ``[USER@]HOST[:PORT],...``; of a text that is not of this form, what follows its last ``@``."""
    if "@" not in text or all(_HOST.fullmatch(entry) for entry in text.split(",")):
        return text
    place = text.rpartition("@")[2]
    return f"{HIDDEN}@{place}" if re.fullmatch(rf"{_PLACE}(,{_PLACE})*", place) else HIDDEN


def image(name: str) -> str:
    """Return the name of a container image; what stands before an ``@`` may be a password, but for a digest's."""
    return name if is_image(name) or not ("@" in name or "://" in name) else address(name)


def is_image(name: str) -> bool:
    """Whether this can be the name of a container image, as docker pull takes it."""
    return _IMAGE.fullmatch(name) is not None


def assignment(text: str) -> str:
    """Return ``KEY=VALUE``; the value without its secrets where it is an address."""
    key, equals, value = text.partition("=")
    if not equals:
        return text if _KEY.fullmatch(text) else HIDDEN
    return f"{key if _KEY.fullmatch(key) else HIDDEN}={addresses.redacted_text(value)}"
