"""A server that stands already, and what a server says of its models."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from common.serving.process import ServerError

_ANSWER_S = 10.0


class StandingServer:
    """A server that this run did not start and does not end; it has the members of ``ServerProcess``."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")

    def wait_ready(self, timeout_s: float, beat: Callable[[], None] = lambda: None) -> float:  # noqa: ARG002
        """Return 0; raise ServerError if the server is away."""
        models(self.url)
        return 0.0

    def check(self, when: str) -> None:
        """Do nothing: a server that ended does not answer."""

    def last_words(self) -> str:
        return f"the server at {self.url} was not started by this run: read its own log"

    def peak_memory(self) -> int:
        return 0

    def stop(self) -> None:
        """Do nothing: the user ends the server."""


def models(url: str) -> list[str]:
    """Return the names of the models that a server has; raise ServerError if it does not say."""
    place = urlsplit(url)
    kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
    connection = kind(place.hostname or "", place.port, timeout=_ANSWER_S)
    asked = f"GET {url}/v1/models"
    try:
        connection.request("GET", f"{place.path}/v1/models")
        response = connection.getresponse()
        status, text = response.status, response.read()
    except (OSError, HTTPException) as error:
        raise ServerError(f"{asked}: no server answered: {error}; start it, or correct its endpoint") from None
    finally:
        connection.close()
    try:
        names = [str(model["id"]) for model in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError):
        names = []
    if status != 200 or not names:
        shown = text[:200].decode("utf-8", "replace")
        raise ServerError(f"{asked}: it answered {status}: {shown!r}; expected 200 and a list of models in data")
    return names


def served_name(url: str, name: str) -> str:
    """Return the name by which a server has a model: ``name``, or if it is empty, that of its only model."""
    names = models(url)
    if name in names:
        return name
    has = f"the server at {url} has {', '.join(map(repr, names))}"
    if name:
        raise ServerError(f"{has}; expected {name!r}")
    if len(names) > 1:
        raise ServerError(f"{has}; set model_name to one of them")
    return names[0]
