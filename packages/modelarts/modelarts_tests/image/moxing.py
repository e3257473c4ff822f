"""The part of the cloud images' library ``moxing`` that the boot file uses: it copies folders from and to OBS."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError


def copy(client: Any, source: str | Path, target: str | Path) -> None:
    if isinstance(source, str) and "://" in source:
        bucket, _, prefix = source.partition("://")[2].partition("/")
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for item in page.get("Contents", ()):
                path = Path(target) / item["Key"].removeprefix(prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                with suppress(ClientError):  # it was removed meanwhile, as the orders of a job that ended
                    client.download_file(bucket, item["Key"], str(path))
        return
    bucket, _, prefix = str(target).partition("://")[2].partition("/")
    for path in Path(source).rglob("*"):
        if path.is_file():
            client.upload_file(str(path), bucket, prefix + str(path.relative_to(source)))


class file:  # noqa: N801 - a module in the original
    @staticmethod
    def copy_parallel(source: str, target: str) -> None:
        keys = {"aws_access_key_id": "image", "aws_secret_access_key": "image", "region_name": "us-east-1"}
        copy(boto3.client("s3", endpoint_url=os.environ["OBS_URL"], **keys), source, target)
