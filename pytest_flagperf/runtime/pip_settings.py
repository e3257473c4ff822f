"""Pip's package index as settings of uv, so that uv finds the same packages as pip.

uv does not read pip's configuration. If no setting of uv selects an index, ``index-url``, ``extra-index-url`` and
``cert`` of pip's environment variables and files are used, or ``find-links`` with ``no-index``; other settings of pip
are not.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from flagperf_driver.node.environments.environment import TRUE

_CERTIFICATES = "SSL_CERT_FILE"
_UV_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_NO_INDEX")


def index_settings(
    environ: Mapping[str, str], pip_source: str | None = None, wheels: str | None = None
) -> dict[str, str]:
    """Return environment variables for uv; the folder ``wheels``, then ``pip_source``, replaces all settings."""
    if wheels:
        return {"UV_NO_INDEX": "1", "UV_FIND_LINKS": Path(wheels).as_uri()}  # uv splits a path at commas
    return {**_index(environ, pip_source), **_certificates(environ)}


def _certificates(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's certificates, unless certificates are set for uv."""
    cert = _pip(environ, "cert")
    own = environ.get("SSL_CERT_FILE") or environ.get("SSL_CERT_DIR")
    return {_CERTIFICATES: cert} if cert and not own and Path(cert).is_file() else {}


def _index(environ: Mapping[str, str], pip_source: str | None) -> dict[str, str]:
    if pip_source:
        return {"UV_DEFAULT_INDEX": pip_source}
    if any(environ.get(name) for name in _UV_INDEX) or _uv_file_names_index(environ):
        return {}
    if _pip(environ, "no-index").lower() in TRUE:
        return {"UV_NO_INDEX": "1", "UV_FIND_LINKS": ",".join(_pip(environ, "find-links").split())}
    index, extra = _pip(environ, "index-url"), _pip(environ, "extra-index-url")
    settings = {}
    if index:
        settings["UV_DEFAULT_INDEX"] = index
    if extra:
        settings["UV_INDEX"] = " ".join(extra.split())
        # Like pip: the best version of all indexes, not the best of the first index.
        settings["UV_INDEX_STRATEGY"] = environ.get("UV_INDEX_STRATEGY") or "unsafe-best-match"
    return settings


def _pip(environ: Mapping[str, str], key: str) -> str:
    """Return pip's value of ``key``: from its variable, else from its files, of which the last has priority."""
    variable = "PIP_" + key.upper().replace("-", "_")
    if environ.get(variable):
        return environ[variable]
    value = ""
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself reports the error
        for section in ("global", "install"):
            value = parser.get(section, key, fallback=value)
    return value.strip()


def _pip_files(environ: Mapping[str, str]) -> Iterator[Path]:
    own = environ.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return
    yield from (Path(root) / "pip/pip.conf" for root in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":"))
    yield Path("/etc/pip.conf")
    yield _home(environ) / ".pip/pip.conf"
    yield _config_home(environ) / "pip/pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if own:
        yield Path(own)


def _uv_file_names_index(environ: Mapping[str, str]) -> bool:
    files = (environ.get("UV_CONFIG_FILE"), _config_home(environ) / "uv/uv.toml", "/etc/uv/uv.toml")
    return any("index" in Path(file).read_text("utf-8", "replace") for file in files if file and Path(file).is_file())


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _config_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or _home(environ) / ".config")
