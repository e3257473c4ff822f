"""Signed requests to the REST interface of Huawei Cloud, and checked answers."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from pytest_flagperf.hosts import HostError, HostLost
from pytest_flagperf.hosts.replies import Shape, check

from .keys import Keys

_log = logging.getLogger("flagperf.modelarts")
_ALGORITHM = "SDK-HMAC-SHA256"
_TIMEOUT_S = (10, 30)
_BUSY = (408, 429, 500, 502, 503, 504)


class RestError(HostError):
    """The service refused a request; ``code`` is its error code."""

    def __init__(self, sentence: str, code: str = "") -> None:
        super().__init__(sentence)
        self.code = code


class Ambiguous(HostLost):
    """A request was sent and its answer did not arrive: the service may have followed it."""


def signed_headers(
    keys: Keys, method: str, url: str, body: bytes, more: Mapping[str, str], now: float | None = None
) -> dict[str, str]:
    """Return the headers of a request, with its signature by the algorithm SDK-HMAC-SHA256."""
    parts = urlsplit(url)
    headers = {
        **{name.lower(): value for name, value in more.items()},
        "host": parts.netloc,
        "x-sdk-date": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now)),
        **({"x-security-token": keys.token} if keys.token else {}),
    }
    names = ";".join(sorted(headers))
    path = quote(parts.path or "/", safe="/-_.~%")
    pairs = sorted(pair.partition("=")[::2] for pair in parts.query.split("&") if pair)
    request = "\n".join(
        [
            method,
            path if path.endswith("/") else f"{path}/",
            "&".join(f"{name}={value}" for name, value in pairs),
            "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers)),
            names,
            hashlib.sha256(body).hexdigest(),
        ]
    )
    text = f"{_ALGORITHM}\n{headers['x-sdk-date']}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = hmac.new(keys.secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = f"{_ALGORITHM} Access={keys.access}, SignedHeaders={names}, Signature={signature}"
    return headers


class Rest:
    """A service of the cloud. Requests raise HostLost if it does not answer, RestError if it refuses."""

    def __init__(self, name: str, endpoint: str, keys: Keys, ca: str | None = None, project: str = "") -> None:
        import requests  # loads slowly, and only this engine uses it

        self.name = name
        self.project = project
        self._endpoint = endpoint
        self._keys = keys
        self._session = requests.Session()
        self._session.verify = ca or True

    def get(self, path: str, shape: Shape) -> dict[str, Any]:
        return self._request("GET", path, None, shape)

    def post(self, path: str, body: Mapping[str, Any] | None, shape: Shape) -> dict[str, Any]:
        return self._request("POST", path, body, shape)

    def close(self) -> None:
        self._session.close()

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None, shape: Shape) -> dict[str, Any]:
        import requests

        url, data = self._endpoint + path, b"" if body is None else json.dumps(body).encode()
        more = {"content-type": "application/json"} | ({"x-project-id": self.project} if self.project else {})
        headers = signed_headers(self._keys, method, url, data, more)
        where = f"{self.name}: {method} {path}"
        try:
            answer = self._session.request(
                method, url, data=data, headers=headers, timeout=_TIMEOUT_S, allow_redirects=False
            )
        except requests.exceptions.ConnectTimeout:
            raise HostLost(f"{self.name} does not answer: {self._endpoint}: no connection in time") from None
        except requests.exceptions.Timeout:
            raise Ambiguous(f"{self.name} does not answer: {where}: no answer in time") from None
        except requests.exceptions.ConnectionError as error:
            lost = Ambiguous if "reset" in str(error) or "aborted" in str(error) else HostLost
            raise lost(f"{self.name} does not answer: {self._endpoint}: {_cause(error)}") from None
        except requests.exceptions.RequestException as error:
            raise HostError(f"{where}: {_cause(error)}") from None
        _log.debug("%s: %s", where, answer.status_code)
        return self._checked(where, answer.status_code, answer.content, shape)

    def _checked(self, where: str, status: int, content: bytes, shape: Shape) -> dict[str, Any]:
        """Return the answer's JSON object; a refusal, an empty answer and an answer of another form are errors."""
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        table = answer if isinstance(answer, dict) else {}
        if status >= 400 or table.get("is_success") is False:
            code = str(table.get("error_code") or "")
            reason = table.get("error_msg") or table.get("error_message") or table.get("message") or "no reason given"
            sentence = f"{where} failed: HTTP {status}: {str(reason)[:300]}{f' ({code})' if code else ''}"
            if status in _BUSY and not code.startswith("ModelArts."):
                raise HostLost(f"{self.name} does not answer: {sentence}")
            raise RestError(f"{sentence}{_advice(status)}", code)
        if not 200 <= status < 300 or not isinstance(answer, dict):
            short = content[:60].decode("utf-8", "replace")
            raise HostError(f"{where}: HTTP {status} with {short!a}; expected a JSON object: is the endpoint right?")
        check(self.name, answer, shape, f"{where.partition(': ')[2]} answer")
        return table


def _advice(status: int) -> str:
    if status in (401, 403):
        return "; check the keys, the project and this machine's clock"
    return "; check the endpoint, the version and the project" if status == 404 else ""


def _cause(error: BaseException) -> str:
    """Return the innermost reason of a failed connection."""
    text = str(error)
    for part in ("Name or service not known", "Temporary failure in name resolution", "No address associated"):
        if part in text:
            return f"{part}; set addresses in [engines.modelarts] if no DNS server knows the host"
    for part in (
        "Connection refused",
        "certificate verify failed",
        "Connection reset by peer",
        "Network is unreachable",
    ):
        if part in text:
            return part
    return text[:200]
