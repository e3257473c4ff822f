"""What a vendor's config file may not weaken: how a case is judged, and the bounds by which it is judged."""

from __future__ import annotations

from collections.abc import Mapping

_JUDGED = "a vendor's config cannot choose how a case is judged; pass it with --set"
NOT_VENDORS: Mapping[str, str] = {
    "checkpoint_dir": "a vendor's config cannot continue from a checkpoint; pass it with --set",
    "data_dir": "a vendor's config cannot choose the data; pass it with --data-dir",
    "parity_samples": _JUDGED,
    "scaling": _JUDGED,
    "throughput_only": _JUDGED,
}
"""Keys whose value stays the suite's, each with the reason and the user's own way to change it."""
AT_LEAST = ("min_efficiency", "throughput_steps")
"""Keys that a vendor may only raise."""
AT_MOST: Mapping[str, float] = {"log_freq": 100, "timing_warmup_steps": 50}
"""Keys that a vendor may raise to this value: steps without a record, and steps that p_core leaves out."""


def weakening(key: str, value: object, suites: object) -> str | None:
    """Return what is allowed instead if a vendor's value weakens the judgement; ``suites``: the value without it."""
    if value == suites:
        return None
    if key in NOT_VENDORS:
        return f"expected the suite's {suites!r}; {NOT_VENDORS[key]}"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isinstance(suites, (int, float)):
        return f"expected at least {suites!r}" if key in AT_LEAST and value is None else None
    if key in AT_LEAST and value < suites:
        return f"expected at least {suites!r}; a vendor's config may ask for more, not for less"
    if key in AT_MOST and value > (most := max(suites, AT_MOST[key])):
        return f"expected at most {most!r} in a vendor's config"
    return None
