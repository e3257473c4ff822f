"""The part of the cloud images' library ``moxing`` that the boot file uses: it copies folders from and to OBS."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def _client() -> Any:
    import boto3

    return boto3.client(
        "s3", endpoint_url=os.environ["OBS_URL"], aws_access_key_id="image", aws_secret_access_key="image",
        region_name="us-east-1",
    )  # fmt: skip


class file:  # noqa: N801 - a module in the original
    @staticmethod
    def copy_parallel(source: str, target: str) -> None:
        client = _client()
        if "://" in source:
            bucket, _, prefix = source.partition("://")[2].partition("/")
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
                for item in page.get("Contents", ()):
                    path = Path(target) / item["Key"].removeprefix(prefix)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    client.download_file(bucket, item["Key"], str(path))
            return
        bucket, _, prefix = target.partition("://")[2].partition("/")
        for path in Path(source).rglob("*"):
            if path.is_file():
                client.upload_file(str(path), bucket, prefix + str(path.relative_to(source)))
