"""Augmentations of the source V (Section 4.3, App. B)."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from fpmc.augmentation.augmented import Augmented
from fpmc.augmentation.kinds import KINDS, MOVES, TURNS, Kind, normal, register, uniform
from fpmc.augmentation.recipe import from_recipe
from fpmc.augmentation.synthetic import Synthetic, synthesize
from fpmc.core.sources import Source
from fpmc.errors import InputError
from fpmc.images import ImageSet

SAMPLING = ("network", "steps", "batch", "device")      # settings of synthetic images
__all__ = [
    "KINDS", "MOVES", "TURNS", "Augmented", "Kind", "Synthetic", "augment", "copies", "from_recipe", "moved", "normal",
    "register", "uniform",
]


def augment(images: ImageSet, kind: str, amount: float = 1.0, seed: int = 0, **settings: Any) -> ImageSet:
    """D′, `amount` times as many augmented images as there are images (Section 4.3, App. B).

    kind: "xflip", "yflip", "translate", "rotate", "scale" ("scale-ln" is its literal reading), one you registered, or
    "synthetic", which takes `network=` and `steps=` too. Beyond the paper: "up", "down", "left", "right" by one pixel,
    "clockwise", "anticlockwise" by 4°. A larger amount holds all of a smaller one.
    """
    if not isinstance(images, ImageSet):
        raise InputError(f"augment takes an ImageSet, got {type(images).__name__}; augment its images and unite with |")
    if kind not in KINDS and kind != "synthetic":
        close = difflib.get_close_matches(str(kind), [*KINDS, "synthetic"], n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(KINDS)} and synthetic"
        raise InputError(f"no augmentation {kind!r}; {hint}")
    known = SAMPLING if kind == "synthetic" else ()
    if wrong := [name for name in settings if name not in known]:
        raise InputError(f"{kind!r} takes no {wrong[0]}; its settings are {', '.join(('amount', 'seed', *known))}")
    if kind != "synthetic":
        return Augmented(images, KINDS[kind], amount, seed)
    if settings.get("network") is None:
        raise InputError("synthetic images need the network that makes them, e.g. network='fashion-ddpmpp'")
    return synthesize(images, amount, seed, **settings)


def copies(source: Source, kinds: Sequence[str]) -> Source:
    """Beyond the paper: a copy of every image by each of these kinds, weighed like its original."""
    parts = [augment(part, kind) for kind in kinds for part in source.parts]
    return Source(parts, None if source.log_weights is None else source.log_weights.repeat(len(kinds)))


def moved(source: Source) -> Source:
    """Beyond the paper: the images and their copies one pixel up, down, left and right.

    Five times as many patches to choose from at every place, which pays where patches are small.
    """
    return source | copies(source, MOVES)
