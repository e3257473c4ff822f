"""A person whose pip finds packages expects ours to be found: pip's index, said in uv's words.

uv does not read pip's configuration. Where nothing tells uv which index to use, ``index-url`` and
``extra-index-url`` of pip's environment variables and files are passed on, and so is ``cert``; nothing else of
pip's is.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_CERTIFICATES = "SSL_CERT_FILE"
_UV_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_NO_INDEX")


def index_settings(environ: Mapping[str, str], pip_source: str | None = None) -> dict[str, str]:
    """Environment variables for uv; ``pip_source`` wins over everything."""
    return {**_index(environ, pip_source), **_certificates(environ)}


def _certificates(environ: Mapping[str, str]) -> dict[str, str]:
    """The certificates that pip trusts, where uv was not told of any."""
    cert = _pip(environ, "cert")
    told = environ.get("SSL_CERT_FILE") or environ.get("SSL_CERT_DIR")
    return {_CERTIFICATES: cert} if cert and not told and Path(cert).is_file() else {}


def _index(environ: Mapping[str, str], pip_source: str | None) -> dict[str, str]:
    if pip_source:
        return {"UV_DEFAULT_INDEX": pip_source}
    if any(environ.get(name) for name in _UV_INDEX) or _uv_file_names_index(environ):
        return {}
    index, extra = _pip(environ, "index-url"), _pip(environ, "extra-index-url")
    settings = {}
    if index:
        settings["UV_DEFAULT_INDEX"] = index
    if extra:
        settings["UV_INDEX"] = " ".join(extra.split())
        # As pip does: the best version of all indexes, not what the first index has.
        settings["UV_INDEX_STRATEGY"] = environ.get("UV_INDEX_STRATEGY") or "unsafe-best-match"
    return settings


def _pip(environ: Mapping[str, str], key: str) -> str:
    """Pip's value of ``key``: its variable, else its files, of which the last one wins."""
    variable = "PIP_" + key.upper().replace("-", "_")
    if environ.get(variable):
        return environ[variable]
    value = ""
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself will complain; it is not ours to
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
