"""The kernels: one file each, with its offers and its run. A new one is a subclass of `Offer` in a file of its own."""

from __future__ import annotations

from fpmc.engine.kernels import (  # noqa: F401
    affine,
    attention,
    block_shifts,
    boxes,
    clusters,
    kept,
    mirrored,
    rows,
    running_shifts,
    shifts,
    streaming,
    translated,
    whole,
)
from fpmc.engine.kernels.offer import Offer


def every() -> list[type[Offer]]:
    """All kernels there are."""
    return list(Offer.known.values())
