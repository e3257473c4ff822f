"""Addresses (URLs) that may hold a password: what of an address may be shown."""

from __future__ import annotations

import re
from typing import Iterator
from urllib.parse import urlsplit

HIDDEN = "***"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FRAGMENT = re.compile(r"(egg|subdirectory|md5|sha1|sha224|sha256|sha384|sha512)=[\w./-]*")  # what pip writes there
_SHORT = 4  # a shorter secret is a part of too many words to be replaced in a text


def shown(address: str) -> str:
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
    query = "&".join(_query_shown(parts.query)) if parts.query else ""
    fragment = parts.fragment if _FRAGMENT.fullmatch(parts.fragment) else HIDDEN
    return head + plain + (f"?{query}" if query else "") + (f"#{fragment}" if parts.fragment else "")


def words_shown(text: str) -> str:
    """Return a text with each of its addresses as ``shown`` returns it; a word that holds ``://`` holds an address."""
    return "".join(_word_shown(word) for word in re.split(r"(\s+)", text))


def secrets_in(text: str) -> set[str]:
    """Return the parts of the addresses in a text that ``shown`` hides."""
    found: set[str] = set()
    for word in text.split():
        if "://" not in word:
            continue
        _, secret, place = _split(_from_scheme(word))
        if secret:
            found |= {secret, secret.partition(":")[2]}
        pairs = [pair for pair in re.split(r"[?&#;]", place)[1:] if not _FRAGMENT.fullmatch(pair)]
        found |= {pair.partition("=")[2] or pair for pair in pairs}
    return {secret for secret in found if len(secret) >= _SHORT}


def _word_shown(word: str) -> str:
    if "://" not in word:
        return word
    address = _from_scheme(word)
    return word[: len(word) - len(address)] + shown(address)


def _from_scheme(word: str) -> str:
    """The word without what stands before its first address, as an option's name."""
    found = _SCHEME.search(word)
    return word[found.start() :] if found else word


def _split(address: str) -> tuple[str, str | None, str]:
    """The scheme; what stands before the last @, None without one; the rest."""
    scheme = _SCHEME.match(address)
    head = scheme.group() if scheme else ""
    secret, at, place = address[len(head) :].rpartition("@")
    return head, secret if at else None, place


def _query_shown(query: str) -> Iterator[str]:
    for pair in query.split("&"):
        name, equals, _ = pair.partition("=")
        yield f"{name}={HIDDEN}" if equals else HIDDEN
