"""The rows of a Wiener filter against thresholds, without its matrix in float64.

At 64×64 in colour that matrix has 1.2 GB and takes a minute or more for each noise level. So it is worked out in
float32, one half of it since it is symmetric, and whatever comes so near a threshold that float32 cannot tell is worked
out again in float64, entry by entry. How far float32 is off is measured on some rows; where that is more than
`UNCERTAIN` allows, or too much is near a threshold, whole rows are float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fpmc.core.gaussian import Gaussian

SMALL = 2048                                            # dimensions up to which everything is float64
BLOCK = 1024                                            # rows at a time
PAIRS = 1024                                            # entries at a time
UNCERTAIN = 2e-5                                        # of √(W_ii W_jj): float32 is not asked about less
TOO_MANY = 0.01                                         # share of entries from which a block of rows is float64


@dataclass(frozen=True)
class Rows:
    """W = U diag(g) Uᵀ, its diagonal exactly, and W in float32 if that is good enough."""

    basis: Tensor                                       # U, float64 (d, k)
    gains: Tensor                                       # g, float64 (k,)
    diagonal: Tensor                                    # float64 (d,)
    rough: Tensor | None                                # float32 (d, d)

    def exact(self, at: slice) -> Tensor:
        """Some rows in float64."""
        return (self.basis[at] * self.gains) @ self.basis.T

    def off(self, at: slice) -> Tensor:
        """How far rows in float32 may be off."""
        off = (UNCERTAIN * self.diagonal.clamp(min=0)).sqrt().float()
        return off[at][:, None] * off

    def entries(self, row: Tensor, column: Tensor) -> Tensor:
        """Some entries in float64."""
        pairs = zip(row.split(PAIRS), column.split(PAIRS))
        parts = [torch.linalg.vecdot(self.basis[i] * self.gains, self.basis[j]) for i, j in pairs]
        return torch.cat([*parts, torch.zeros(0, dtype=torch.float64)])

    def slices(self) -> Iterator[slice]:
        """All rows, some at a time."""
        for start in range(0, len(self.basis), BLOCK):
            yield slice(start, min(start + BLOCK, len(self.basis)))

    def largest(self, absolute: bool = False) -> Tensor:
        """The largest entry of each row, or the largest absolute value, float64 (d,)."""
        tops = torch.full((len(self.basis),), -torch.inf, dtype=torch.float64)
        for at in self.slices():
            unsure = None
            if self.rough is not None:
                rows = self.rough[at].abs() if absolute else self.rough[at]
                unsure = few(rows >= (rows - (off := self.off(at))).amax(1, keepdim=True) - off)
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


def filter_rows(gaussian: Gaussian, gains: Tensor) -> Rows:
    """The rows of U diag(g) Uᵀ."""
    basis = gaussian.eigenvectors
    diagonal = torch.cat([rows.square() @ gains for rows in basis.split(BLOCK)])
    if len(basis) <= SMALL:
        return Rows(basis, gains, diagonal, None)
    rows = Rows(basis, gains, diagonal, _rough(basis, gains))
    return rows if _good_enough(rows) else Rows(basis, gains, diagonal, None)


def _rough(basis: Tensor, gains: Tensor) -> Tensor:
    """W in float32, from its lower half."""
    half = torch.empty(basis.shape, dtype=torch.float32)
    for start in range(0, len(basis), BLOCK):
        half[start : start + BLOCK] = basis[start : start + BLOCK] * gains.sqrt()
    rough = torch.empty(len(basis), len(basis), dtype=torch.float32)
    for start in range(0, len(basis), BLOCK):
        end = min(start + BLOCK, len(basis))
        torch.mm(half[start:end], half[:end].T, out=(part := rough.new_empty(end - start, end)))
        rough[start:end, :end] = part
        rough[:start, start:end] = part[:, :start].T
    return rough


def _good_enough(rows: Rows) -> bool:
    """Whether float32 is off by no more than a quarter of what is allowed for, in rows from all over."""
    some = torch.linspace(0, len(rows.basis) - 1, 48).long()
    exact = (rows.basis[some] * rows.gains) @ rows.basis.T
    off = rows.diagonal.clamp(min=0).sqrt()
    allowed = UNCERTAIN * off[some][:, None] * off
    return bool(((rows.rough[some] - exact).abs() <= allowed / 4).all())  # pyright: ignore[reportOptionalSubscript]
