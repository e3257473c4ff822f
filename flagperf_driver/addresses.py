"""Hide the secrets in addresses (URLs): user, password, query values and fragment."""

from __future__ import annotations

import re
from typing import Iterator
from urllib.parse import urlsplit

HIDDEN = "***"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FRAGMENT = re.compile(r"(egg|subdirectory|md5|sha1|sha224|sha256|sha384|sha512)=[\w./-]*")  # fragments that pip uses
_MIN_LENGTH = 4  # a shorter secret is part of too many words to be replaced in a text


def redacted(address: str) -> str:
    """Return an address without its user, its password, the values of its query, and its fragment.

    Everything before the last ``@`` counts as user and password: a password may hold ``/``, ``?``, ``#`` and ``@``.
    """
    scheme, secret, place = _split(address)
    head = f"{scheme}{HIDDEN}@" if secret is not None else scheme
    try:
        parts = urlsplit(f"//{place}")
    except ValueError:  # invalid brackets of an IPv6 address
        return head + HIDDEN
    plain = re.split(r"[?#]", place, maxsplit=1)[0]
    query = "&".join(_redacted_query(parts.query)) if parts.query else ""
    fragment = parts.fragment if _FRAGMENT.fullmatch(parts.fragment) else HIDDEN
    return head + plain + (f"?{query}" if query else "") + (f"#{fragment}" if parts.fragment else "")


def redacted_text(text: str) -> str:
    """Return a text with all addresses (words that contain ``://``) redacted."""
    return "".join(_redacted_word(word) for word in re.split(r"(\s+)", text))


def secrets_in(text: str) -> set[str]:
    """Return the parts of the addresses in a text that ``redacted`` hides."""
    secrets: set[str] = set()
    for word in text.split():
        if "://" not in word:
            continue
        _, secret, place = _split(_from_scheme(word))
        if secret:
            secrets |= {secret, secret.partition(":")[2]}
        pairs = [pair for pair in re.split(r"[?&#;]", place)[1:] if not _FRAGMENT.fullmatch(pair)]
        secrets |= {pair.partition("=")[2] or pair for pair in pairs}
    return {secret for secret in secrets if len(secret) >= _MIN_LENGTH}


def _redacted_word(word: str) -> str:
    if "://" not in word:
        return word
    address = _from_scheme(word)
    return word[: len(word) - len(address)] + redacted(address)


def _from_scheme(word: str) -> str:
    """Return the word from its first address on, without e.g. the name of an option before it."""
    scheme = _SCHEME.search(word)
    return word[scheme.start() :] if scheme else word


def _split(address: str) -> tuple[str, str | None, str]:
    """Return the scheme, the text before the last @ (None without @), and the rest."""
    scheme = _SCHEME.match(address)
    head = scheme.group() if scheme else ""
    secret, at, place = address[len(head) :].rpartition("@")
    return head, secret if at else None, place


def _redacted_query(query: str) -> Iterator[str]:
    for pair in query.split("&"):
        name, equals, _ = pair.partition("=")
        yield f"{name}={HIDDEN}" if equals else HIDDEN
