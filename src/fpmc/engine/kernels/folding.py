"""What mirrors make of q or r with one vector for each pixel: how far it is from mirrored, and what its sums take.

All of it is kept with what it belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fpmc.core.precision import Precision
from fpmc.core.response import Response

if TYPE_CHECKING:
    from fpmc.engine.simd.mirrors import Mirrors


FAR_OFF = 1 / 18                                        # moves a logit by 1 nat at least, since z − x reaches 6 σ


class Split(NamedTuple):
    """What mirrors make of a matrix."""

    off: float                                          # Σ |q − its mean over all mirrors|, of the worst row
    weight: float                                       # Σ q of the heaviest row
    places: int                                         # of four rows each; 0 if nobody can want them


_splits: WeakKeyDictionary[Precision | Response, dict[bool, Split]] = WeakKeyDictionary()
_built: WeakKeyDictionary[Precision | Response, Mirrors] = WeakKeyDictionary()


def pixelwise(part: Precision | Response) -> bool:
    """One vector for each pixel, shared by the channels."""
    return getattr(part, "diagonal", True) and part.channels == 1 and len(part) == math.prod(size_of(part))


def size_of(part: Precision | Response) -> tuple[int, int]:
    """Height and width of the images."""
    height, width = part.total().shape[1:] if isinstance(part, Response) else (part.height, part.width)
    return height, width


def ways(part: Precision | Response, most: float) -> Iterator[tuple[bool, Split]]:
    """Without the diagonal, and with it where the image is square, if `part` is off by so much at most.

    The mean over more mirrors is at least half as far from it.
    """
    height, width = size_of(part)
    for diagonal in (False, True) if height == width else (False,):
        found = split(part, diagonal)
        if found.off <= most:
            yield diagonal, found
        elif found.off > 2 * most:
            return


def matrix_of(part: Precision | Response) -> Tensor:
    """float64: of q estimators by pixels, of r output values by estimators."""
    dense = part.dense(torch.float64).flatten(1)
    return dense.T if isinstance(part, Response) else dense


def split(part: Precision | Response, diagonal: bool) -> Split:
    """How far from mirrored, and what that takes."""
    from fpmc.engine.simd import mirrors

    known = _splits.setdefault(part, {})
    if diagonal not in known:
        matrix, how = matrix_of(part), (*size_of(part), diagonal)
        mean = mirrors.mirrored(matrix, *how)
        off = (matrix - mean).abs_().sum(1).max().item()
        known[diagonal] = Split(off, mean.sum(1).max().item(), mirrors.places(mean, *how) if off < FAR_OFF else 0)
    return known[diagonal]


def build(part: Precision | Response, diagonal: bool) -> Mirrors:
    """The last one made is kept with what it belongs to."""
    from fpmc.engine.simd import mirrors

    if part not in _built or _built[part].diagonal != diagonal:
        how = *size_of(part), diagonal
        _built[part] = mirrors.build(mirrors.mirrored(matrix_of(part), *how), *how)
    return _built[part]
