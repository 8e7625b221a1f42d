"""Sparse rows: each by its entries, by what it lacks, or by its difference to an earlier row, whichever is shortest.

Rows of any values go four at a time where neighbours see much the same places: what is read there is used four times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CHAIN = 8                                               # rows that each differ from the one before; so many such chains
DEEPEST = 2 * (CHAIN - 1)                               # differences that a row may be the sum of
NOTHING, EVERYTHING = -1, -2                            # what a row is added to, if not to an earlier row
FOUR = 4                                                # rows at a time
FIRST = 32                                              # places, by weight, after which there is a first look
WORTH = 2.5                                             # entries to a place from which on that is faster


class Sparse(NamedTuple):
    """Rows as `lanes.row_sums` takes them; where they go four at a time, places and ends are those of fours."""

    rows: int
    ends: np.ndarray                                    # int64 (rows + 1,), or (fours + 1,)
    turns: np.ndarray                                   # int64 (rows,): where the entries to subtract begin; or (0,)
    places: np.ndarray                                  # int32 (entries,)
    values: np.ndarray                                  # float32 (entries,), (0,) if all are 1 or −1; or (places·FOUR,)
    bases: np.ndarray                                   # int64 (rows,): NOTHING, EVERYTHING or an earlier row; or (0,)


class Fours(NamedTuple):
    """Rows four at a time: a place that one of them has, all have."""

    ends: np.ndarray                                    # int64 (fours + 1,)
    places: np.ndarray                                  # int64 (places,)
    values: np.ndarray                                  # float32 (places, FOUR)

    @classmethod
    def of(cls, row: np.ndarray, place: np.ndarray, value: np.ndarray, rows: int, span: int) -> Fours:
        """Of entries, and with rows without any, as many as are missing to a multiple of `FOUR`."""
        values = np.zeros((-(-rows // FOUR), span, FOUR), np.float32)
        values[row // FOUR, place, row % FOUR] = value
        four, places = np.divmod(np.flatnonzero(values.any(2)), span)          # `nonzero` would give strided arrays
        ends = np.concatenate([[0], np.bincount(four, minlength=len(values)).cumsum()])
        return cls(ends, places, values[four, places])

    def by_weight(self) -> Fours:
        """The places of each four by weight, in stretches that end at `FIRST` and its doubles, and in order in each."""
        four = np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))
        order = np.lexsort((-self.values.sum(1), four))
        rank = np.arange(len(order)) - self.ends[four]
        stretch = np.frexp(rank / FIRST)[1].clip(min=0)
        order = order[np.lexsort((self.places[order], stretch, four))]
        return Fours(self.ends, self.places[order], self.values[order])

    def rows(self, count: int) -> Sparse:
        """As `lanes.row_sums` takes them."""
        none = np.zeros(0, np.int64)
        return Sparse(count, self.ends, none, self.places.astype(np.int32), self.values.ravel(), none)


def binary(matrix: Tensor) -> bool:
    """Whether all entries are 0 or 1."""
    return matrix.dtype == torch.bool or bool(((matrix == 0) | (matrix == 1)).all())


def choose(matrix: Tensor, short: bool) -> tuple[np.ndarray, int]:
    """What each row is added to, int64 (rows,), and how many entries that makes; not `short`: every row to nothing.

    A row may differ from the one before, the first of each chain from the nearest first one, unless that is the last of
    a chain of those: neighbours, along a row of pixels and across, and no sum so deep that rounding would pile up.
    """
    own = matrix.count_nonzero(1)
    if not short or not binary(matrix):
        return np.full(len(matrix), NOTHING), int(own.sum())
    lacks = matrix.shape[1] - own
    lengths, bases = torch.minimum(own, lacks), torch.where(lacks < own, EVERYTHING, NOTHING)
    rows = torch.arange(1, len(matrix))
    change = (matrix[1:] != matrix[:-1]).count_nonzero(1)
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


def in_fours(matrix: Tensor) -> int:
    """Places of four rows each."""
    there = torch.nn.functional.pad(matrix != 0, (0, 0, 0, -len(matrix) % FOUR))
    return int(there.view(len(there) // FOUR, FOUR, matrix.shape[1]).any(1).sum())


def worth(matrix: Tensor, entries: int) -> int:
    """Places of four rows each, where to read these is faster than entry by entry; else 0."""
    places = 0 if binary(matrix) else in_fours(matrix)
    return places if entries > WORTH * places else 0


def work(matrix: Tensor, short: bool) -> tuple[str, int]:
    """What the sums of all rows take: entries, one by one, or places of four rows each."""
    entries = choose(matrix, short)[1]
    places = worth(matrix, entries)
    return ("four", places) if places else ("entry", entries)


def build(matrix: Tensor, short: bool) -> Sparse:
    """The rows of a matrix."""
    bases, count = choose(matrix, short)
    dense = matrix.numpy()
    none, every = dense.dtype.type(0), dense.dtype.type(1)
    ends, turns, places, values = [0], [], [], []
    for entries, base in zip(dense, bases):
        before = none if base == NOTHING else every if base == EVERYTHING else dense[base]
        more, less = np.flatnonzero(entries > before), np.flatnonzero(entries < before)
        places += [more, less]
        if base == NOTHING:
            values += [entries[more].astype(np.float32), entries[less].astype(np.float32)]
        else:                                           # all are 0 or 1
            values += [np.ones(len(more), np.float32), np.full(len(less), -1, np.float32)]
        turns.append(ends[-1] + len(more))
        ends.append(turns[-1] + len(less))
    value, where = np.concatenate(values), np.concatenate(places)
    if worth(matrix, count):
        fours = Fours.of(np.repeat(np.arange(len(dense)), np.diff(ends)), where, value, *dense.shape)
        return fours.by_weight().rows(len(dense))
    unit = bool((np.abs(value) == 1).all())
    return Sparse(
        len(dense), np.array(ends), np.array(turns), where.astype(np.int32), np.zeros(0, np.float32) if unit else value,
        bases,
    )
