"""Places in OBS: a bucket and a key."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"(?:(?:obs|s3):/)?/(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<key>.*))?")
EXPECTED = "expected obs://BUCKET/FOLDER/ or /BUCKET/FOLDER/"


@dataclass(frozen=True)
class ObsFolder:
    """A folder in OBS; its key is empty, or ends with a slash."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> ObsFolder | None:
        """Return the folder that a text names; None if the text has another form."""
        match = _FORM.fullmatch(text)
        if match is None or any(ord(letter) < 32 for letter in text):
            return None
        key = (match["key"] or "").strip("/")
        if any(part in ("", ".", "..") for part in key.split("/")) and key:
            return None
        return cls(match["bucket"], f"{key}/" if key else "")

    def folder(self, name: str) -> ObsFolder:
        """Return a folder below this one."""
        return ObsFolder(self.bucket, f"{self.key}{name.strip('/')}/")

    @property
    def url(self) -> str:
        return f"obs://{self.bucket}/{self.key}"

    @property
    def path(self) -> str:
        """The form that the REST interface takes."""
        return f"/{self.bucket}/{self.key}"
