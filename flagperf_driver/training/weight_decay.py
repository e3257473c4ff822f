"""Which parameters have weight decay: one rule for all frameworks."""

from __future__ import annotations

from typing import Any, Mapping


def without_decay(shapes: Mapping[str, int], config: Any) -> set[str]:
    """Return the parameters without weight decay; ``shapes`` are the numbers of dimensions of all parameters by name.

    Biases and norms (one-dimensional) have none unless ``decay_vectors`` is set; ``no_decay`` names further ones.
    """
    unknown = [part for part in config.no_decay if not any(part in name for name in shapes)]
    if unknown:
        raise ValueError(f"no_decay: no parameter's name contains {', '.join(map(repr, unknown))}")
    if not config.weight_decay:
        return set(shapes)
    return {
        name
        for name, dimensions in shapes.items()
        if (dimensions <= 1 and not config.decay_vectors) or any(part in name for part in config.no_decay)
    }
