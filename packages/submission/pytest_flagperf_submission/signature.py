"""Signatures by ``ssh-keygen -Y``, which comes with OpenSSH: who packed an archive.

The signature of FILE is FILE.sig. A file of allowed signers has a line for each person or CI that may sign, as
ssh-keygen(1) describes: a name, and a public key.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import BinaryIO

from pytest_flagperf.problems import Problems

_NAMESPACE = "flagperf"
"""A signature for another purpose, such as of a commit, does not count."""


def signature_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.sig")


def sign(file: Path, key: Path) -> Path:
    """Write the signature of a file by a private key, or by the agent that has it; ssh-keygen may ask for a phrase."""
    done = _ssh_keygen("sign", "-f", str(key), str(file))
    if done.returncode:
        raise Problems([f"{file}: not signed with {key}: {_reason(done)}"])
    return signature_of(file)


def signer(file: Path, signers: Path) -> str:
    """Return who signed a file, one of the allowed signers; Problems without a good signature."""
    signature = signature_of(file)
    if problems := [f"{path}: no such file" for path in (signature, signers) if not path.is_file()]:
        raise Problems(problems)
    found = _ssh_keygen("find-principals", "-s", str(signature), "-f", str(signers))
    names = found.stdout.decode().split()
    if found.returncode or not names:
        raise Problems([f"{signature}: {_reason(found)}; expected the signature of a key in {signers}"])
    with file.open("rb") as content:
        done = _ssh_keygen("verify", "-s", str(signature), "-f", str(signers), "-I", names[0], stdin=content)
    if done.returncode:
        raise Problems([f"{file}: not what {names[0]} signed: {_reason(done)}"])
    return done.stdout.decode().strip().partition(" signature for ")[2]


def _ssh_keygen(action: str, *words: str, stdin: BinaryIO | None = None) -> subprocess.CompletedProcess[bytes]:
    namespace = [] if action == "find-principals" else ["-n", _NAMESPACE]
    command = ["ssh-keygen", "-Y", action, *namespace, *words]
    try:
        return subprocess.run(command, stdin=stdin, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise Problems(["ssh-keygen not found: install the client of OpenSSH 8.9 or later"]) from error


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
