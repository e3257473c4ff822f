"""A batch as arguments of a graph: its tensors one by one, and the function that nests them again inside the graph.

A call takes 40 us longer if a nesting is one argument. The compiler supports neither ``dict(zip(...))`` nor recursion.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import mindspore as ms

Restore = Callable[[Any], Any]
Nesting = Any
"""The index of a tensor; for a dict its keys, for a tuple or list the type, each with the nestings of the items."""


def flattened(batch: Any) -> tuple[Nesting, list[Any]]:
    """Return the nesting, which is hashable, and the tensors; numbers become mutable, or they would be constants."""
    leaves: list[Any] = []
    return _flattened(batch, leaves), leaves


def _flattened(item: Any, leaves: list[Any]) -> Nesting:
    if isinstance(item, dict):
        return tuple(item), tuple([_flattened(value, leaves) for value in item.values()])
    if isinstance(item, (tuple, list)):
        return list if isinstance(item, list) else tuple, tuple([_flattened(value, leaves) for value in item])
    leaves.append(item if isinstance(item, ms.Tensor) else ms.mutable(item))
    return len(leaves) - 1


def restoring(nesting: Nesting) -> Restore:
    """Return the function that returns the batch, called inside a graph with the tuple of the tensors."""
    if isinstance(nesting, int):
        return _item(nesting)
    kind, nestings = nesting
    parts = tuple([restoring(part) for part in nestings])
    if isinstance(kind, tuple):
        return _dict(kind, parts)
    return _list(parts) if kind is list else _tuple(parts)


def _item(number: int) -> Restore:
    def restore(leaves: Any) -> Any:
        return leaves[number]

    return restore


def _dict(keys: tuple[str, ...], parts: Sequence[Restore]) -> Restore:
    def restore(leaves: Any) -> Any:
        made = {}
        for number in range(len(keys)):
            made[keys[number]] = parts[number](leaves)
        return made

    return restore


def _list(parts: Sequence[Restore]) -> Restore:
    def restore(leaves: Any) -> Any:
        return [part(leaves) for part in parts]

    return restore


def _tuple(parts: Sequence[Restore]) -> Restore:
    def restore(leaves: Any) -> Any:
        return tuple([part(leaves) for part in parts])

    return restore
