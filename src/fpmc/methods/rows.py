"""The rows of a Wiener filter against thresholds, without its matrix in float64.

At 64×64 in colour that matrix has 1.2 GB and takes a minute or more for each noise level. So it is worked out in
float32, one half of it since it is symmetric, and whatever comes so near a threshold that this cannot tell is worked
out again in float64, entry by entry. From one noise level to the next the matrix changes little: of what was known,
c·W_ref, only the directions are changed in which the gains g differ most from c·g_ref. For all others together,

    |Σ_k δ_k U_ik U_jk| ≤ √(D_i D_j),    D_i = Σ_k |δ_k| U_ik²,    δ = g − c·g_ref,

so this is how far the matrix may be off for want of them, and it adds up over the levels. How many directions are left
out is what costs least, with the entries to be worked out again. How far float32 is off is measured on some rows; where
that is more than `UNCERTAIN` allows, or too much is near a threshold, whole rows are float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fpmc.core.gaussian import Gaussian

SMALL = 2048                                            # dimensions up to which everything is float64
BLOCK = 1024                                            # rows of a product at a time
STRIP = 128                                             # rows looked at at a time: they stay in the cache
PAIRS = 1024                                            # entries at a time
SAMPLE = 48                                             # rows that are compared with float64
UNCERTAIN = 2e-5                                        # of √(W_ii W_jj): float32 is not asked about less
TOO_MANY = 0.01                                         # share of entries from which a strip of rows is float64
ENTRY = 300                                             # an exact entry costs as much as so many in a product
CUTS = tuple(k / 64 for k in (1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60))      # shares kept
_last: WeakKeyDictionary[Gaussian, Rough] = WeakKeyDictionary()


class Rough(NamedTuple):
    """W in float32."""

    gains: Tensor                                       # float64 (k,)
    matrix: Tensor                                      # float32 (d, d)
    left_out: Tensor                                    # D, float64 (d,): it is off by √(D_i D_j) and by rounding


@dataclass(frozen=True)
class Rows:
    """W = U diag(g) Uᵀ, its diagonal exactly, and W roughly if that is good enough."""

    basis: Tensor                                       # U, float64 (d, k)
    gains: Tensor                                       # g, float64 (k,)
    diagonal: Tensor                                    # float64 (d,)
    rough: Tensor | None = None                         # float32 (d, d)
    left_out: Tensor | float = 0.0                      # D, float64 (d,)

    def exact(self, at: slice) -> Tensor:
        """Some rows in float64."""
        return (self.basis[at] * self.gains) @ self.basis.T

    def off(self, at: slice) -> Tensor:
        """How far rows in float32 may be off; a product of such sums is no less than the sum of the products."""
        off = (UNCERTAIN * self.diagonal.clamp(min=0) + self.left_out).sqrt().float()
        return off[at][:, None] * off

    def entries(self, row: Tensor, column: Tensor) -> Tensor:
        """Some entries in float64, ordered by their rows."""
        found = [torch.zeros(0, dtype=torch.float64)]
        which, counts = row.unique_consecutive(return_counts=True)
        for i, columns in zip(which.tolist(), column.split(counts.tolist())):
            one = self.basis[i] * self.gains
            found += [self.basis.index_select(0, some) @ one for some in columns.split(PAIRS)]
        return torch.cat(found)

    def slices(self) -> Iterator[slice]:
        """All rows, some at a time."""
        step = BLOCK if self.rough is None else STRIP
        for start in range(0, len(self.basis), step):
            yield slice(start, min(start + step, len(self.basis)))

    def largest(self, absolute: bool = False) -> Tensor:
        """The largest entry of each row, or the largest absolute value, float64 (d,); no less than the diagonal."""
        tops = self.diagonal.clone()
        for at in self.slices():
            unsure = None
            if self.rough is not None:
                rows, off = self.rough[at].abs() if absolute else self.rough[at], self.off(at)
                least = torch.maximum((rows - off).amax(1), tops[at].float())[:, None]
                unsure = (rows + off).ge_(least * (1 - 1e-6)).bool()           # for the rounding of `tops`
                unsure.diagonal(at.start).fill_(False)
                unsure = few(unsure)
            if unsure is None:
                exact = self.exact(at)
                tops[at] = (exact.abs() if absolute else exact).amax(1)
            else:
                row, column = unsure[0] + at.start, unsure[1]
                exact = self.entries(row, column)
                tops.scatter_reduce_(0, row, exact.abs() if absolute else exact, "amax")
        return tops

    def above(
        self, limits: Tensor, *, absolute: bool = False, inclusive: bool = False
    ) -> Iterator[tuple[slice, Tensor]]:
        """Which entries of some rows are above (or at) the limit of their row: slices and bool (rows, d)."""

        def over(values: Tensor, limit: Tensor) -> Tensor:
            values = values.abs() if absolute else values
            return values >= limit if inclusive else values > limit

        for at in self.slices():
            unsure = keep = None
            if self.rough is not None:
                limit = limits[at][:, None].float()
                keep, rows = over(self.rough[at], limit), self.rough[at].abs() if absolute else self.rough[at]
                unsure = few((rows - limit).abs_() <= self.off(at))
            if unsure is None or keep is None:
                keep = over(self.exact(at), limits[at][:, None])
            else:
                row, column = unsure
                keep[row, column] = over(self.entries(row + at.start, column), limits[at][row])
            yield at, keep


def few(unsure: Tensor) -> tuple[Tensor, Tensor] | None:
    """Rows and columns of what is to be worked out again, None if that is too much."""
    if unsure.count_nonzero() > TOO_MANY * unsure.numel():
        return None
    row, column = unsure.nonzero().unbind(1)
    return row, column


class Way(NamedTuple):
    """How to come by W: c·W_ref, and some directions of what is missing."""

    factor: float                                       # c
    columns: Tensor                                     # int64, the directions
    others: Tensor                                      # |δ| of all other directions, float64 (k,), else 0


@contextmanager
def filter_rows(gaussian: Gaussian, gains: Tensor, share: float) -> Iterator[Rows]:
    """The rows of U diag(g) Uᵀ, to be compared with about `share` of their diagonal; gone when this is left.

    What is rough of them stays with the Gaussian, for the next noise level.
    """
    basis, known = gaussian.eigenvectors, _last.pop(gaussian, None)            # nobody else has it now
    if len(basis) <= SMALL:
        yield Rows(basis, gains, weighed(basis, gains))
        return
    some = torch.linspace(0, len(basis) - 1, SAMPLE).long()
    exact = (basis[some] * gains) @ basis.T
    for start in (None,) if known is None else (known, None):                  # from nothing, if that does not do
        rough, diagonal = _rough(basis, gains, start, share, (some, exact))
        rows = Rows(basis, gains, diagonal, rough.matrix, rough.left_out)
        if _good_enough(rows, some, exact):
            yield rows
            _last[gaussian] = rough
            return
    yield Rows(basis, gains, weighed(basis, gains))


def weighed(basis: Tensor, weights: Tensor) -> Tensor:
    """Σ_k U_ik² w_k."""
    return torch.cat([rows.square() @ weights for rows in basis.split(BLOCK)])


def _rough(
    basis: Tensor, gains: Tensor, known: Rough | None, share: float, sample: tuple[Tensor, Tensor]
) -> tuple[Rough, Tensor]:
    """W in float32, by as few directions as pays, and its diagonal exactly."""
    d, k = basis.shape
    nothing = torch.zeros_like(gains)
    ways = [Way(0.0, torch.arange(k), nothing), *(_ways(gains, known) if known is not None else ())]
    diagonal, *more = weighed(basis, torch.stack([gains, *(way.others for way in ways)], 1)).unbind(1)
    before = 0.0 if known is None else known.left_out
    left_out = [way.factor * before + each for way, each in zip(ways, more)]
    some, exact = sample
    away = (exact.abs() - share * diagonal[some][:, None]).square()

    def cost(place: int) -> float:
        off = UNCERTAIN * diagonal.clamp(min=0) + left_out[place]
        unsure = float((away <= off[some][:, None] * off).double().mean())
        return len(ways[place].columns) / k / 2 + ENTRY * min(unsure, TOO_MANY)

    best = min(range(len(ways)), key=cost)
    factor, columns, _ = ways[best]
    matrix = torch.empty(d, d) if known is None else known.matrix
    _add(matrix, factor, basis, gains if known is None else gains - factor * known.gains, columns)
    return Rough(gains, matrix, left_out[best]), diagonal


def _ways(gains: Tensor, known: Rough) -> Iterator[Way]:
    """With c as it is where gains are nearly λ/σ², and where they are nearly 1, and so many directions."""
    some = (known.gains > 0).nonzero()
    weakest = int(some[0]) if len(some) else 0
    for factor in (float(gains[weakest] / known.gains[weakest]), 1.0):
        if 0 < factor < 1e6:
            change = (gains - factor * known.gains).abs()
            order = change.argsort(descending=True)
            for cut in CUTS:
                columns = order[: round(len(gains) * cut)]
                yield Way(factor, columns, change.index_fill(0, columns, 0.0))


def _add(matrix: Tensor, factor: float, basis: Tensor, change: Tensor, columns: Tensor) -> None:
    """matrix ← factor·matrix + U diag(change) Uᵀ over some columns, in place, from its lower half."""
    half = torch.empty(len(basis), len(columns))
    scale, sign = change[columns].abs().sqrt(), change[columns].sign().float()
    for start in range(0, len(basis), BLOCK):
        half[start : start + BLOCK] = basis[start : start + BLOCK, columns] * scale
    for start in range(0, len(basis), BLOCK):
        end = min(start + BLOCK, len(basis))
        part = matrix[start:end, :end]
        part.addmm_(half[start:end] * sign, half[:end].T, beta=factor)         # with beta = 0, whatever was there goes
        matrix[:start, start:end] = part[:, :start].T


def _good_enough(rows: Rows, some: Tensor, exact: Tensor) -> bool:
    """Whether rounding takes no more than a quarter of what is allowed for it, in some rows."""
    assert rows.rough is not None
    off = (UNCERTAIN / 4 * rows.diagonal.clamp(min=0) + rows.left_out).sqrt()
    return bool(((rows.rough[some] - exact).abs() <= off[some][:, None] * off).all())
