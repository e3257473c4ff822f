"""OBS through its S3 interface: list, read, write and delete objects; every failure is one sentence."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_flagperf.hosts import HostError, HostLost

from .config import ModelArtsConfig
from .keys import Keys
from .obs_path import ObsFolder

_CHECKSUM = "flagperf-sha256"
_AT_ONCE = 1000  # keys of one delete request
_CONNECT_S, _READ_S, _TRIES = 10, 60, 3
_REASONS = {
    "403": "access denied: check the keys and the bucket's permissions",
    "AccessDenied": "access denied: check the bucket's permissions",
    "InvalidAccessKeyId": "unknown access key: check the keys",
    "SignatureDoesNotMatch": "wrong secret key: check the keys",
    "NoSuchBucket": "bucket not found",
    "404": "not found",
    "NoSuchKey": "not found",
}


class NotFound(HostError):
    """The object does not exist."""


@dataclass(frozen=True)
class ObsObject:
    """An object: its key, its size in bytes, and its tag, which changes with its content."""

    key: str
    size: int
    tag: str


class Obs:
    """The objects of an account. Methods raise HostLost if OBS does not answer, and HostError if it refuses."""

    def __init__(self, config: ModelArtsConfig, keys: Keys) -> None:
        # Loads slowly, and is not needed for --plan.
        import boto3
        from botocore.config import Config

        self.endpoint = config.endpoint("obs")
        # At DEBUG the library logs the headers of requests, which contain the access key and the token.
        for name in ("boto3", "botocore", "s3transfer"):
            logging.getLogger(name).setLevel(logging.INFO)
        self._client: Any = boto3.session.Session(
            aws_access_key_id=keys.access,
            aws_secret_access_key=keys.secret,
            aws_session_token=keys.token or None,
        ).client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=config.region or "default",
            verify=config.ca or True,
            config=Config(
                signature_version="s3v4",
                # An address has no sub-domains; OBS takes only the bucket's sub-domain.
                s3={"addressing_style": "path" if _is_address(self.endpoint) else "virtual"},
                connect_timeout=_CONNECT_S,
                read_timeout=_READ_S,
                retries={"mode": "standard", "total_max_attempts": _TRIES},
                # OBS does not know the checksums that newer versions of S3's clients add.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def check_bucket(self, bucket: str) -> None:
        """Raise HostError if the bucket cannot be used."""
        with _errors(f"bucket {bucket}"):
            self._client.head_bucket(Bucket=bucket)

    def objects(self, folder: ObsFolder, name: str = "") -> Iterator[ObsObject]:
        """Yield the objects of a folder whose names below it start with ``name``."""
        with _errors(f"{folder.url}{name}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=folder.bucket, Prefix=folder.key + name
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield ObsObject(str(item["Key"]), int(item["Size"]), str(item["ETag"]).strip('"'))

    def find(self, folder: ObsFolder, name: str) -> ObsObject | None:
        """Return an object of a folder; None if it does not exist."""
        try:
            with _errors(f"{folder.url}{name}"):
                head = self._client.head_object(Bucket=folder.bucket, Key=folder.key + name)
        except NotFound:
            return None
        return ObsObject(folder.key + name, int(head["ContentLength"]), str(head["ETag"]).strip('"'))

    def read(self, folder: ObsFolder, name: str, start: int = 0, size: int | None = None) -> bytes:
        """Return the content of an object from ``start`` on; at most ``size`` bytes."""
        bounds = (
            {} if not start and size is None else {"Range": f"bytes={start}-{'' if size is None else start + size - 1}"}
        )
        with _errors(f"{folder.url}{name}"):
            body = self._client.get_object(Bucket=folder.bucket, Key=folder.key + name, **bounds)["Body"]
            return bytes(body.read())

    def write(self, folder: ObsFolder, name: str, content: bytes) -> None:
        """Write an object; ``content`` replaces an older object."""
        with _errors(f"{folder.url}{name}"):
            self._client.put_object(Bucket=folder.bucket, Key=folder.key + name, Body=content)

    def delete(self, folder: ObsFolder, keys: Iterable[str]) -> None:
        """Delete objects of the folder's bucket."""
        listed = list(keys)
        for first in range(0, len(listed), _AT_ONCE):
            self._delete(folder, listed[first : first + _AT_ONCE])

    def _delete(self, folder: ObsFolder, keys: Sequence[str]) -> None:
        with _errors(folder.url):
            entries = [{"Key": key} for key in keys]
            answer = self._client.delete_objects(Bucket=folder.bucket, Delete={"Objects": entries, "Quiet": True})
        if refused := answer.get("Errors"):
            raise HostError(
                f"OBS: {refused[0]['Key']} cannot be removed: {refused[0].get('Message', 'no reason given')}"
            )

    def synchronize(self, folder: ObsFolder, files: Mapping[str, bytes | Path], keep: str) -> tuple[int, int]:
        """Make the folder contain exactly these files, except objects below ``keep``; upload only changed files.

        Return the number of uploaded and of removed objects.
        """
        present = {found.key.removeprefix(folder.key): found for found in self.objects(folder)}
        changed = [name for name, source in files.items() if not self._has(folder, present.get(name), source)]
        for name in changed:
            self._upload(folder, name, files[name])
        stale = [name for name in present if name not in files and not name.startswith(keep)]
        self.delete(folder, [folder.key + name for name in stale])
        return len(changed), len(stale)

    def _has(self, folder: ObsFolder, found: ObsObject | None, source: bytes | Path) -> bool:
        """Return True if an object has the content of ``source``."""
        if found is None or found.size != (len(source) if isinstance(source, bytes) else source.stat().st_size):
            return False
        if isinstance(source, bytes):
            return found.tag.lower() == hashlib.md5(source, usedforsecurity=False).hexdigest()
        with _errors(f"{folder.url}{source.name}"):
            head = self._client.head_object(Bucket=folder.bucket, Key=found.key)
        return bool(head.get("Metadata", {}).get(_CHECKSUM) == _file_checksum(source))

    def _upload(self, folder: ObsFolder, name: str, source: bytes | Path) -> None:
        if isinstance(source, bytes):
            self.write(folder, name, source)
            return
        # The tag of an object that was uploaded in parts is not its checksum.
        more = {"Metadata": {_CHECKSUM: _file_checksum(source)}}
        with _errors(f"{folder.url}{name}"):
            self._client.upload_file(str(source), folder.bucket, folder.key + name, ExtraArgs=more)


def _file_checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _is_address(endpoint: str) -> bool:
    host = endpoint.partition("://")[2].partition("/")[0]
    return host.startswith("[") or host.rpartition(":")[0].replace(".", "").isdigit() or host.replace(".", "").isdigit()


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Turn the client's errors into sentences that contain no key."""
    from botocore import exceptions

    lost = (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError, OSError)
    try:
        yield
    except exceptions.ClientError as error:
        _raise_refusal(what, error)
    except lost as error:  # also timeouts and interrupted bodies
        raise HostLost(f"OBS does not answer: {what}: {_cause(error)}") from None
    except exceptions.BotoCoreError as error:
        raise HostError(f"OBS: {what}: {error}") from None


def _raise_refusal(what: str, error: Any) -> None:
    answer = error.response
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status >= 500 or code in ("SlowDown", "RequestTimeout"):
        raise HostLost(f"OBS does not answer: {what}: {code or status}") from None
    reason = _REASONS.get(code) or str(answer.get("Error", {}).get("Message") or code)
    kind = NotFound if status == 404 and code != "NoSuchBucket" else HostError
    raise kind(f"OBS: {what}: {reason}") from None


def _cause(error: BaseException) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text[:200]
