"""A host's disk: what lies over the machine's own files. Written before the host boots, kept when its power goes."""

import hashlib
import os
import shutil
import stat
from pathlib import Path


class Disk:
    """The upper layer of a host's overlay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.upper = folder / "upper"

    def format(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("upper", "work", "docker", "state"):
            (self.folder / name).mkdir(parents=True)
        self.upper.chmod(0o755)

    def mkdir(self, path: str, mode: int | None = None) -> Path:
        """Create a folder with the mode that it has on the machine, because the upper layer's mode is used."""
        here = self.upper / path.lstrip("/")
        for folder in reversed([here, *here.parents]):
            if self.upper in folder.parents and not folder.is_dir():
                folder.mkdir()
                real = Path("/") / folder.relative_to(self.upper)
                folder.chmod(stat.S_IMODE(real.stat().st_mode) if real.is_dir() else 0o755)
        if mode is not None:
            here.chmod(mode)
        return here

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        file = self.mkdir(os.path.dirname(path)) / os.path.basename(path)  # noqa: PTH119, PTH120
        file.unlink(missing_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        file.chmod(mode)

    def hide(self, path: str) -> None:
        """Let a file or folder of the machine not be there: the overlay's own sign for a deleted one."""
        if Path(path).exists() or Path(path).is_symlink():
            os.mknod(self.mkdir(os.path.dirname(path)) / os.path.basename(path), stat.S_IFCHR, 0)  # noqa: PTH119, PTH120

    def empty(self, path: str) -> None:
        """Let a folder of the machine be this disk's own: nothing shows through, now and later."""
        os.setxattr(self.mkdir(path), "trusted.overlay.opaque", b"y")

    def install(self, name: str, hosts: str, sshd_config: str, key: Path, host_key: Path, known_hosts: Path) -> None:
        """A small Linux of its own: identity, names, keys; nothing that asks a name server."""
        self.format()
        self.write("/etc/hostname", f"{name}\n")
        self.write("/etc/machine-id", hashlib.md5(str(self.folder).encode()).hexdigest() + "\n")
        self.write("/etc/hosts", hosts)
        self.write("/etc/resolv.conf", "")
        self.write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
        self.write("/etc/shadow", unlocked(Path("/etc/shadow").read_text()), 0o640)
        self.write("/etc/ssh/sshd_config", sshd_config)
        for old_key in Path("/etc/ssh").glob("ssh_host_*"):
            self.hide(str(old_key))
        self.write("/etc/ssh/ssh_host_ed25519_key", host_key.read_bytes(), 0o600)
        self.mkdir("/root/.ssh", 0o700)
        self.write("/root/.ssh/authorized_keys", Path(f"{key}.pub").read_bytes(), 0o600)
        self.write("/root/.ssh/id_ed25519", key.read_bytes(), 0o600)
        self.write("/root/.ssh/known_hosts", known_hosts.read_bytes())
        # A shell's start-up files cost each command their time and say what this machine's owner likes.
        for file in ("/root/.bashrc", "/root/.profile", "/root/.bash_profile", "/etc/docker", "/etc/ld.so.preload"):
            self.hide(file)


def unlocked(shadow: str) -> str:
    """Root without a password but not locked: sshd refuses a locked account even with a key."""
    lines = [line.split(":") for line in shadow.splitlines()]
    return "".join(":".join([one[0], "*", *one[2:]] if one[0] == "root" else one) + "\n" for one in lines)
