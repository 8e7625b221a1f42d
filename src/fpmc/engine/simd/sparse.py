"""Sparse rows: each by its entries, by what it lacks, or by its difference to an earlier row, whichever is shortest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CHAIN = 8                                               # rows that each differ from the one before; so many such chains
DEEPEST = 2 * (CHAIN - 1)                               # differences that a row may be the sum of
NOTHING, EVERYTHING = -1, -2                            # what a row is added to, if not to an earlier row


class Sparse(NamedTuple):
    """Rows as `lanes.row_sums` takes them."""

    ends: np.ndarray                                    # int64 (rows + 1,)
    turns: np.ndarray                                   # int64 (rows,): where the entries to subtract begin
    places: np.ndarray                                  # int32 (entries,)
    values: np.ndarray                                  # float32 (entries,); (0,) if all are 1 or −1
    bases: np.ndarray                                   # int64 (rows,): NOTHING, EVERYTHING or an earlier row


def choose(matrix: Tensor, short: bool) -> tuple[np.ndarray, int]:
    """What each row is added to, int64 (rows,), and how many entries that makes; not `short`: every row to nothing.

    A row may differ from the one before, the first of each chain from the nearest first one, unless that is the last of
    a chain of those: neighbours, along a row of pixels and across, and no sum so deep that rounding would pile up.
    """
    own = matrix.count_nonzero(1)
    if not short or not bool(((matrix == 0) | (matrix == 1)).all()):
        return np.full(len(matrix), NOTHING), int(own.sum())
    lacks = matrix.shape[1] - own
    lengths, bases = torch.minimum(own, lacks), torch.where(lacks < own, EVERYTHING, NOTHING)
    rows = torch.arange(1, len(matrix))
    change = (matrix[1:] != matrix[:-1]).sum(1)
    follows = (rows % CHAIN != 0) & (change < lengths[1:])
    lengths[1:][follows], bases[1:][follows] = change[follows], rows[follows] - 1

    firsts, counts = matrix[::CHAIN].float(), own[::CHAIN]
    apart = counts[:, None] + counts - 2 * (firsts @ firsts.T).long()
    depth = [0] * len(firsts)
    for first in range(1, len(firsts)):
        nearest = int(apart[first, :first].argmin())
        row, length = first * CHAIN, int(apart[first, nearest])
        if length < lengths[row] and depth[nearest] < CHAIN - 1:
            lengths[row], bases[row], depth[first] = length, nearest * CHAIN, depth[nearest] + 1
    return bases.numpy(), int(lengths.sum())


def build(matrix: Tensor, short: bool) -> Sparse:
    """The rows of a matrix."""
    bases, _ = choose(matrix, short)
    dense = matrix.numpy()
    ends, turns, places, values = [0], [], [], []
    for entries, base in zip(dense, bases):
        change = entries.astype(np.float32)
        if base != NOTHING:
            change = change - (1 if base == EVERYTHING else dense[base])
        more, less = np.flatnonzero(change > 0), np.flatnonzero(change < 0)
        places += [more, less]
        values += [change[more], change[less]]
        turns.append(ends[-1] + len(more))
        ends.append(turns[-1] + len(less))
    every = np.concatenate(values)
    unit = bool((np.abs(every) == 1).all())
    return Sparse(
        np.array(ends), np.array(turns), np.concatenate(places).astype(np.int32),
        np.zeros(0, np.float32) if unit else every, bases,
    )
