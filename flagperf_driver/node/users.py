"""Names of users."""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):  # Windows imports this module for its names, but runs no rounds
    import pwd


def user_name(uid: int) -> str:
    """Return the name of a user, or the number of a user without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
