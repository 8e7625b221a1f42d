"""Sums of rows, whatever they are made of: `sparse.Sparse` or `mirrors.Mirrors`; numba takes the one for the type."""

from __future__ import annotations

import numpy as np
from numba.extending import overload

from fpmc.engine.simd.lanes import row_sums
from fpmc.engine.simd.mirrors import Mirrors, mirrored_sums
from fpmc.engine.simd.sparse import FOUR
from fpmc.engine.simd.vector import LANES


def count(matrix):
    """How many rows there are."""
    raise NotImplementedError


def room_for(matrix):
    """For the sums of all rows, with as many as are missing to a multiple of `FOUR`, and for what they are made of."""
    raise NotImplementedError


def sums_of(s, matrix, room, prior, scale, floor):
    """room[0][row] = Σ values·s; sparse rows may end at a `floor` (`fours`)."""
    raise NotImplementedError


@overload(count)
def _count(matrix):
    if matrix.instance_class is Mirrors:
        return lambda matrix: matrix.height * matrix.width
    return lambda matrix: matrix.rows


@overload(room_for)
def _room_for(matrix):
    if matrix.instance_class is Mirrors:
        def room(matrix):
            rows, folded = matrix.height * matrix.width, len(matrix.at)
            parts = np.empty(matrix.rows.rows * LANES, np.float32)
            return np.empty(rows * LANES, np.float32), np.empty(folded * LANES, np.float32), parts
    else:
        def room(matrix):
            none = np.empty(0, np.float32)
            return np.empty(-(-matrix.rows // FOUR) * FOUR * LANES, np.float32), none, none
    return room


@overload(sums_of)
def _sums_of(s, matrix, room, prior, scale, floor):
    if matrix.instance_class is Mirrors:
        return lambda s, matrix, room, prior, scale, floor: mirrored_sums(s, matrix, room[0], room[1], room[2])
    return lambda s, matrix, room, prior, scale, floor: row_sums(s, matrix, room[0], prior, scale, floor)
