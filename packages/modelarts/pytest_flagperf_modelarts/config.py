"""The table [engines.modelarts] of the settings: the account, the job, and where code, data and results are."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pytest_flagperf.problems import Problems, unusable_path
from pytest_flagperf.settings.options import SiteTable
from pytest_flagperf.typed import Rule, read_table

from .keys import Keys, read_keys
from .obs_path import EXPECTED, ObsFolder
from .original_files import OriginalFiles, read_original

NAME = "engines.modelarts"
VERSIONS = ("v1", "v2")
LEAST_RELEASE = (21, 9, 0)
"""The oldest release of ModelArts that ais-bench was verified with."""
LONGEST_NAME = 40
"""Characters of a job's name as given: a name in the cloud has at most 64, and the time of the job is added."""
_LONGEST_DESCRIPTION = 200
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_VARIABLES = "expected a variable's name that does not start with MA_"
_WORD = re.compile(r"[\w.-]+")
_PUBLIC = "myhuaweicloud.com"
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_ADDRESS = re.compile(r"[0-9a-fA-F.:]+")
GLOG_LEVELS, DEVICE_LOG_LEVELS = ("INFO", "WARNING", "ERROR", "FATAL"), ("DEBUG", "INFO", "WARNING", "ERROR", "NULL")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain and parts.path in ("", "/")


def _are_addresses(table: Mapping[str, str]) -> bool:
    return all(_HOST.fullmatch(name) and _ADDRESS.fullmatch(address) for name, address in table.items())


def _levels(names: tuple[str, ...]) -> Rule:
    words = ", ".join(f"{number} {name}" for number, name in enumerate(names))
    return Rule(f"one of {words}", range(len(names)).__contains__)


def _whole(least: int, most: int) -> Rule:
    return Rule(f"a whole number from {least} to {most}", lambda value: least <= value <= most)


_Text = Annotated[str, Rule("a string that is not empty", lambda text: text and text.isprintable())]
_Path = Annotated[str, Rule("ais-bench's folder code/config", lambda text: not unusable_path(text))]
_Url = Annotated[str, Rule("http:// or https:// with a host and nothing else", _is_url)]
_Folder = Annotated[ObsFolder, Rule(EXPECTED.removeprefix("expected "), lambda _: True)]
_Version = Annotated[str, Rule(f"one of {', '.join(VERSIONS)}", VERSIONS.__contains__)]
_Region = Annotated[str, Rule("a region, as in cn-north-4", _WORD.fullmatch)]
_Project = Annotated[str, Rule("the project's id", _WORD.fullmatch)]
_Name = Annotated[str, Rule(f"1 to {LONGEST_NAME} letters, digits, _ and -", _NAME.fullmatch)]
_Description = Annotated[
    str, Rule(f"at most {_LONGEST_DESCRIPTION} characters", lambda text: len(text) <= _LONGEST_DESCRIPTION)
]
_Release = Annotated[str, Rule("a release, as in 21.9.0", re.compile(r"\d{1,4}(\.\d{1,4}){1,3}").fullmatch)]
_Addresses = Annotated[
    Mapping[str, str],
    Rule("a table of host names with IP addresses, as in 'obs.example.org' = '10.0.0.2'", _are_addresses),
]
_Instances = Annotated[int, _whole(1, 10_000)]
_Cards = Annotated[int, _whole(1, 64)]
_GlogLevel = Annotated[int, _levels(GLOG_LEVELS)]
_DeviceLogLevel = Annotated[int, _levels(DEVICE_LOG_LEVELS)]
_Poll = Annotated[float, Rule("a number of seconds from 0.05 to 45", lambda poll: 0.05 <= poll <= 45)]


@dataclass(frozen=True)
class ModelArtsConfig:
    """The checked table; ``source`` is the file."""

    code: _Folder
    """Folder of the code in OBS, which belongs to pytest-flagperf: other files in it are removed."""
    output: _Folder
    """Folder of the results in OBS; each job has a new folder below it."""
    project: _Project = ""
    """Number of the project; default: the region's project."""
    data: _Folder | None = None
    """Folder of the training data in OBS."""
    version: _Version = "v2"
    """Version of the REST interface: v2, or v1, the older one."""
    region: _Region = ""
    """Region of the public cloud."""
    obs_endpoint: _Url = ""
    """Endpoint of the storage, of a computing centre with its own."""
    modelarts_endpoint: _Url = ""
    """Endpoint of ModelArts, of a computing centre with its own."""
    iam_endpoint: _Url = ""
    """Endpoint of the identity service; needed only without project."""
    addresses: _Addresses = field(default_factory=dict)
    """IP addresses of host names that no DNS server knows."""
    ca: _Text | None = None
    """File with certificates, if the centre has its own."""
    keys: _Text | None = None
    """File with the keys of the account; default: environment variables."""
    job_name: _Name = "flagperf"
    """Begin of the name of each job; the time is added."""
    description: _Description = ""
    """Description of each job."""
    framework: _Text = ""
    """Name of an image of ModelArts."""
    framework_version: _Text = ""
    """Version of this image."""
    image: _Text = ""
    """Your own image instead (v2 only)."""
    pool: _Text = ""
    """A dedicated pool; never with flavor."""
    flavor: _Text = ""
    """An instance of the public pool."""
    instances: _Instances = 1
    """Number of hosts that cases may use."""
    cards: _Cards = 8
    """Cards of each instance."""
    single_server: bool = False
    """True: each instance trains alone."""
    release: _Release = ""
    """Release of a computing centre."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of every rank."""
    packages: _Text | None = None
    """Folder with wheels and installers for the image."""
    glog_level: _GlogLevel | None = None
    """GLOG_v: 0 INFO, 1 WARNING, 2 ERROR, 3 FATAL."""
    device_log_level: _DeviceLogLevel | None = None
    """ASCEND_GLOBAL_LOG_LEVEL: 0 DEBUG, 1 INFO, 2 WARNING, 3 ERROR, 4 NULL."""
    poll: _Poll = 10.0
    """Seconds between two requests to the service."""
    original: _Path | None = None
    """The folder code/config of ais-bench, whose settings hold where the table has none."""
    source: str = "[engines.modelarts]"
    without_effect: tuple[str, ...] = ()
    original_keys: Keys | None = field(default=None, repr=False)
    NOT_KEYS: ClassVar = ("source", "without_effect", "original_keys")

    def endpoint(self, service: str) -> str:
        """Return the URL of a service: ``obs``, ``modelarts`` or ``iam``."""
        own = {"obs": self.obs_endpoint, "modelarts": self.modelarts_endpoint, "iam": self.iam_endpoint}[service]
        return own or f"https://{service}.{self.region}.{_PUBLIC}"

    def read_keys(self, environment: Mapping[str, str] = os.environ) -> Keys:
        """Return the keys of the account; Problems without keys."""
        return read_keys(Path(self.keys) if self.keys else None, environment, self.original_keys)


def read_config(given: SiteTable) -> ModelArtsConfig:
    """Read the table and ais-bench's files that it names; Problems with all problems."""
    if not given.table:
        raise Problems(
            [f"{given.file}: no table [engines.modelarts]; the README of pytest-flagperf-modelarts has an example"]
        )
    own = dict(given.table)
    problems: list[str] = []
    original = _original(own, given.file, problems)
    values: dict[str, Any] = {}
    for where, table in ((f"{given.file}: original", original.table), (str(given.file), own)):
        found, wrong = read_table(ModelArtsConfig, _parsed(table), NAME, secret=("keys", "environment"))
        values |= found
        problems += [f"{where}: {problem}" for problem in wrong]
    for name in ("ca", "keys", "packages"):
        if name in values:
            values[name] = _path(f"{given.file}: engines.modelarts.{name}", given.file, values[name], name, problems)
    _check_together(str(given.file), values, problems)
    if problems:
        raise Problems(problems)
    keys = Keys(original.access, original.secret) if original.access and original.secret else None
    effects = (*original.without_effect, *_release_note(values))
    return ModelArtsConfig(**values, source=str(given.file), without_effect=effects, original_keys=keys)


def _original(own: dict[str, Any], file: Path, problems: list[str]) -> OriginalFiles:
    """Read ais-bench's files in the folder that ``original`` names."""
    folder = own.get("original")
    if not isinstance(folder, str) or unusable_path(folder):
        return OriginalFiles()
    try:
        return read_original(file.absolute().parent / Path(folder).expanduser())
    except Problems as error:
        problems += error.problems
        return OriginalFiles()


def _parsed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the folders that have their form, and with endpoints without a slash at the end."""
    return {name: _parse(name, value) if isinstance(value, str) else value for name, value in table.items()}


def _parse(name: str, text: str) -> str | ObsFolder:
    if name in ("code", "data", "output"):
        return ObsFolder.parse(text) or text
    return text.rstrip("/") if name.endswith("_endpoint") else text


def _path(where: str, file: Path, text: str, name: str, problems: list[str]) -> str:
    path = file.absolute().parent / Path(text).expanduser()
    if not (path.is_dir() if name == "packages" else path.is_file()):
        problems.append(f"{where}: {path}: {'folder' if name == 'packages' else 'file'} not found")
    return str(path)


def _check_together(file: str, values: Mapping[str, Any], problems: list[str]) -> None:
    """Check the settings that depend on each other."""
    where = f"{file}: engines.modelarts"
    problems += [f"{where}.{name}: missing; {EXPECTED}" for name in ("code", "output") if name not in values]
    bad = [name for name in values.get("environment", ()) if not _VARIABLE.fullmatch(name) or name.startswith("MA_")]
    problems += [f"{where}.environment: {bad[0]!r}: {_VARIABLES}"] if bad else []
    code = values.get("code")
    if code is not None and not code.key:
        problems.append(f"{where}.code = {code.url}: expected a folder in the bucket; files in it are removed")
    for name in ("data", "output"):
        other = values.get(name)
        if code and other and other.bucket == code.bucket and other.key.startswith(code.key):
            problems.append(f"{where}.{name} = {other.url}: is in the code folder {code.url}, whose files are removed")
    if values.get("pool") and values.get("flavor"):
        problems.append(
            f"{where}: pool and flavor are both set; a job runs in one pool: set pool for a dedicated pool,"
            " or flavor for the public pool"
        )
    elif not values.get("pool") and not values.get("flavor"):
        problems.append(f"{where}: set pool for a dedicated pool, or flavor for the public pool")
    if not (values.get("image") or (values.get("framework") and values.get("framework_version"))):
        problems.append(f"{where}: set framework and framework_version for an image of ModelArts, or image for another")
    if values.get("image") and values.get("version", "v2") == "v1":
        problems.append(f"{where}: image requires version = 'v2'")
    endpoints = [name for name in ("obs_endpoint", "modelarts_endpoint") if values.get(name)]
    if len(endpoints) == 1:
        other = ({"obs_endpoint", "modelarts_endpoint"} - {*endpoints}).pop()
        problems.append(f"{where}: {endpoints[0]} is set without {other}; a computing centre has both")
    if not endpoints and not values.get("region"):
        problems.append(f"{where}: set region, or the endpoints of a computing centre")
    if not values.get("project") and not values.get("region"):
        problems.append(f"{where}.project: missing; expected the project's id")
    if values.get("instances", 1) > 1 and values.get("cards", 8) != 8 and not values.get("single_server"):
        problems.append(
            f"{where}: instances = {values['instances']} with cards = {values['cards']}: ModelArts connects only"
            " instances of 8 cards"
        )


def _release_note(values: Mapping[str, Any]) -> list[str]:
    release = values.get("release")
    if not release or tuple(map(int, release.split("."))) >= LEAST_RELEASE:
        return []
    least = ".".join(map(str, LEAST_RELEASE))
    return [f"engines.modelarts.release = {release!r}: jobs were verified with ModelArts {least} and later only"]
