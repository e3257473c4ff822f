"""Addresses of hosts that no DNS server knows, as a computing centre has them, without a change of /etc/hosts."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_addresses: dict[str, str] = {}
_system = socket.getaddrinfo


def use_addresses(addresses: Mapping[str, str]) -> None:
    """Let this process resolve these host names, and names below them, to the given addresses."""
    _addresses.update(addresses)
    if _addresses:
        socket.getaddrinfo = _resolve


def _resolve(host: Any, *arguments: Any, **options: Any) -> Any:
    return _system(_address(host), *arguments, **options)


def _address(host: Any) -> Any:
    if isinstance(host, str):
        for name, address in _addresses.items():
            if host == name or host.endswith(f".{name}"):
                return address
    return host


def unresolved(endpoint: str) -> str | None:
    """Return a sentence if the host of an endpoint has no address; None if it has one, or a proxy finds it."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return None
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return (
            f"{host} has no address: {error.strerror or error}; ask the operator of the computing centre for it and add"
            f" it to addresses in [engines.modelarts], as in {host!r} = '10.0.0.2'"
        )
    return None
