"""Sparse rows: each by its entries, by what it lacks, or by its difference to the row before, whichever is shortest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CHAIN = 8                                               # every so manyth row stands by itself: rounding cannot pile up
OWN, LACKS, DIFFERS = 0, 1, 2                           # a row is added to nothing, the sum of all, the row before


class Sparse(NamedTuple):
    """Rows as `lanes.row_sums` takes them."""

    ends: np.ndarray                                    # int64 (rows + 1,)
    turns: np.ndarray                                   # int64 (rows,): where the entries to subtract begin
    places: np.ndarray                                  # int64 (entries,)
    values: np.ndarray                                  # float32 (entries,); (0,) if all are 1 or −1
    kinds: np.ndarray                                   # uint8 (rows,): OWN, LACKS or DIFFERS


def choose(matrix: Tensor, short: bool) -> tuple[np.ndarray, int]:
    """How each row is stored, uint8 (rows,), and how many entries that makes; not `short`: every row by its own."""
    own = matrix.count_nonzero(1)
    if not short or not bool(((matrix == 0) | (matrix == 1)).all()):
        return np.zeros(len(matrix), np.uint8), int(own.sum())
    lengths = torch.stack([own, matrix.shape[1] - own, own])
    lengths[DIFFERS, 1:] = (matrix[1:] != matrix[:-1]).sum(1)
    lengths[DIFFERS, ::CHAIN] = matrix.shape[1] + 1     # never
    length, kind = lengths.min(0)
    return kind.numpy().astype(np.uint8), int(length.sum())


def build(matrix: Tensor, short: bool) -> Sparse:
    """The rows of a matrix."""
    kinds, _ = choose(matrix, short)
    dense = matrix.numpy()
    ends, turns, places, values = [0], [], [], []
    for row, (entries, kind) in enumerate(zip(dense, kinds)):
        change = entries.astype(np.float32)
        if kind != OWN:
            change = change - (1 if kind == LACKS else dense[row - 1])
        more, less = np.flatnonzero(change > 0), np.flatnonzero(change < 0)
        places += [more, less]
        values += [change[more], change[less]]
        turns.append(ends[-1] + len(more))
        ends.append(turns[-1] + len(less))
    every = np.concatenate(values)
    unit = bool((np.abs(every) == 1).all())
    return Sparse(
        np.array(ends), np.array(turns), np.concatenate(places), np.zeros(0, np.float32) if unit else every, kinds
    )
