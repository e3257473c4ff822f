"""The hosts of a run and how to reach them: the table [cluster] of the settings."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from flagperf_driver.node.agent import archive
from flagperf_driver.node.agent.archive import LogLimits
from pytest_flagperf import redaction
from pytest_flagperf.problems import Problems, shown, unusable_path
from pytest_flagperf.typed import Rule, read_table

# Users, host names and interpreters become words of ssh's and a shell's command lines.
_USER = re.compile(r"[\w.][\w.@-]*")
_NAME = re.compile(r"\w[\w.-]*")
_HOST = re.compile(r"[\w.:][\w.%:-]*")
_PYTHON = re.compile(r"[\w./+-]+")
_PORTS = range(1, 65536)
_SYNTAX = "host, user@host, host:port or [IPv6 address]:port, optionally with name= in front"
_LONGEST = 200  # characters of a host's name, which names folders
_LONGEST_LABEL = 63
HOST_WORD = "{host}"
_Text = Annotated[str, Rule("a string that is not empty", bool)]
_User = Annotated[str, Rule("a user name of letters, digits, . _ - and @", _USER.fullmatch)]
_Python = Annotated[
    str, Rule("the name or path of a program on the hosts, of letters, digits, / . _ + and -", _PYTHON.fullmatch)
]
_Hosts = Annotated[tuple[str, ...], Rule("a list of at least one host, each a string", bool)]
_Port = Annotated[int, Rule("a whole number from 1 to 65535", _PORTS.__contains__)]
_Count = Annotated[int, Rule("a whole number larger than 0", lambda count: count > 0)]
_GiB = Annotated[float, Rule("a number of GiB larger than 0", lambda gib: 0 < gib < math.inf)]


def _is_command(text: str) -> bool:
    try:
        return HOST_WORD in text and HOST_WORD not in shlex.split(text)[0]
    except ValueError:  # a quotation mark is missing
        return False


_Reach = Annotated[str, Rule(f"the words of a command, then {HOST_WORD}", _is_command)]
_OF_SSH = ("user", "port", "key", "known_hosts", "gateway")


class ClusterError(Problems):
    """An invalid description of a cluster."""


@dataclass(frozen=True)
class Address:
    """A host as given; for None the settings of the cluster or the SSH configuration apply."""

    name: str
    host: str
    user: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class ClusterConfig:
    """The table [cluster]: the hosts in the order in which cases use them; ``source`` is the file."""

    hosts: _Hosts = ()
    """The hosts: ``[NAME=][USER@]HOST[:PORT]``."""
    user: _User | None = None
    """Default: the user of the SSH configuration, else your own name."""
    port: _Port | None = None
    """Port of SSH."""
    key: _Text | None = None
    """File of the private key; default: the keys of ssh-agent and of the SSH configuration."""
    known_hosts: _Text | None = None
    """File with the host keys; default: the files of the SSH configuration."""
    gateway: _Text | None = None
    """A jump host through which all other hosts are reached."""
    reach: _Reach | None = None
    """The command that runs what follows it on ``{host}`` and passes its input and output. Default: SSH."""
    python: _Python = "python3"
    """The Python >= 3.8 that runs the agent on the hosts."""
    source: str = "--cluster"
    without_effect: tuple[str, ...] = ()  # sentences on settings without effect
    max_log_gib: _GiB = archive.MAX_GIB  # of a round's logs from one host
    max_log_entries: _Count = archive.MAX_ENTRIES  # number of files and folders in these logs
    max_whole_hosts: _Count = archive.MAX_WHOLE_HOSTS  # in rounds on more hosts, hosts sum up their logs and keep them
    NOT_KEYS: ClassVar = ("source", "without_effect")

    @property
    def log_limits(self) -> LogLimits:
        """The limits of a round's logs from one host."""
        return LogLimits(self.max_log_gib * archive.GIB, self.max_log_entries, self.max_whole_hosts)

    def addresses(self) -> tuple[Address, ...]:
        """Return all hosts; ClusterError with all problems."""
        problems: list[str] = []
        addresses = tuple(_addresses(self.hosts, f"{self.source}: hosts", problems, self.reach is not None))
        if problems:
            raise ClusterError(problems)
        return addresses


def read_cluster(table: Mapping[str, Any], file: Path) -> ClusterConfig:
    """Read the table of a settings file; paths are relative to the file's folder."""
    values, wrong = read_table(ClusterConfig, table, "cluster", secret=("hosts", "gateway", "user"))
    problems = [f"{file}: {problem}" for problem in wrong]
    for name in ("key", "known_hosts"):
        if name in values:
            values[name] = str(file.absolute().parent / Path(values[name]).expanduser())
    for name in {"key", "known_hosts"} & values.keys():
        if problem := unusable_path(values[name]):
            problems.append(f"{file}: cluster.{name}: {shown(values.pop(name))}: {problem}")
    if "key" in values and not Path(values["key"]).is_file():
        problems.append(f"{file}: cluster.key: {values['key']}: file not found")
    if "reach" in values:
        problems += [
            f"{file}: cluster.{name} has no effect with reach: remove it" for name in _OF_SSH if name in values
        ]
    list(_addresses(values.get("hosts", ()), f"{file}: cluster.hosts", problems, "reach" in values))
    if "gateway" in values:
        list(_addresses([values["gateway"]], f"{file}: cluster.gateway", problems))
    if problems:
        raise ClusterError(problems)
    return ClusterConfig(**values, source=str(file))


def split_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of --cluster=a,b."""
    return tuple(host.strip() for host in text.split(",") if host.strip())


def parse_host(text: str) -> Address | None:
    """Parse an entry ``[name=][user@]host[:port]``; None if it is invalid."""
    name, named, rest = text.rpartition("=")
    user, at, place = rest.rpartition("@")
    bracketed = re.fullmatch(r"\[(.*)\](?::(\d+))?", place)
    if bracketed:
        host, port = bracketed.groups()
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    else:
        host, port = place, None
    if len(host) > _LONGEST or len(name) > _LONGEST or max(map(len, host.split("."))) > _LONGEST_LABEL:
        return None
    if not _HOST.fullmatch(host) or (at and not _USER.fullmatch(user)) or (named and not _NAME.fullmatch(name)):
        return None
    if port is not None and (not port.isdecimal() or int(port) not in _PORTS):
        return None
    # The name becomes a folder's name, and artifact stores refuse colons.
    plain = re.sub(r"^-", "0-", re.sub(r"[:%]+", "-", host))
    return Address(name or plain, host, user or None, int(port) if port else None)


def _addresses(hosts: Sequence[str], where: str, problems: list[str], by_command: bool = False) -> Iterator[Address]:
    seen: dict[str, str] = {}
    # A password with a comma is split into two entries.
    with_user = any("@" in text for text in hosts)
    for number, text in enumerate(hosts, 1):
        address = parse_host(text)
        if address is None:
            public = redaction.hosts(text) if "@" in text or not with_user else f"entry {number}"
            problems.append(
                f"{where}: {shown(public)}: expected {_SYNTAX}; ports are 1 to 65535, names have at"
                f" most {_LONGEST} characters, and passwords are not allowed"
            )
        elif by_command and (address.user or address.port):
            problems.append(f"{where}: {shown(redaction.hosts(text))}: expected no user and no port with reach")
        elif address.name in seen:
            other = seen[address.name]
            problems.append(
                f"{where}: {text!r}: {'is listed twice' if other == text else f'has the same name as {other!r}'}; "
                "host names must be unique: remove one, or rename it with name=host"
            )
        else:
            seen[address.name] = text
            yield address
