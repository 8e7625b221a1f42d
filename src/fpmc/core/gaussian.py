"""V as a Gaussian: the source that makes the Wiener filter a member of the class (App. A.3)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fpmc.core import shelf
from fpmc.core.sources import Measure, Source
from fpmc.errors import InputError

CHUNK = 2048                                            # images per step of the covariance
EXACT = 1024                                            # products of bytes whose sum float32 holds exactly
KEEP = 2048                                             # dimensions from which a fit is kept on disk
_known: WeakValueDictionary[str, Gaussian] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Gaussian(Measure, kind="gaussian"):
    """N(μ, Σ) with Σ = U diag(λ) Uᵀ: the source that makes the Wiener filter a member of the class (App. A.3).

    Of N images in d > N dimensions there are at most N directions in which they vary, k of them; λ is 0 in all others.
    """

    mean: Tensor                                        # float64 (C, H, W)
    eigenvalues: Tensor                                 # float64 (k,), non-negative
    eigenvectors: Tensor                                # (d, k), orthonormal columns
    fitted: Source | None = None                        # the images whose mean and covariance these are
    content: str = ""                                   # the checksum of these images and their weights

    def __post_init__(self) -> None:
        k, d = len(self.eigenvalues), self.mean.numel()
        if self.mean.ndim != 3 or tuple(self.eigenvectors.shape) != (d, k):
            got = f"{tuple(self.mean.shape)}, {k} eigenvalues and eigenvectors {tuple(self.eigenvectors.shape)}"
            raise InputError(f"a Gaussian needs a mean (C, H, W), k eigenvalues and eigenvectors ({d}, k); got {got}")

    @property
    def shape(self) -> tuple[int, int, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(self.mean.shape)  # pyright: ignore[reportReturnType]

    def changed(self, change: Callable[[Source], Source]) -> Gaussian:
        if self.fitted is None:
            raise InputError("this Gaussian does not know its images, so none can be left out of it; fit it again")
        images = change(self.fitted)
        return self if images is self.fitted else fit_gaussian(images)

    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("mean", "eigenvalues", "eigenvectors")}

    def covariance(self) -> Tensor:
        """Σ, (d, d)."""
        return (self.eigenvectors * self.eigenvalues) @ self.eigenvectors.T


def fit_gaussian(source: Source) -> Gaussian:
    """N(μ, Σ) with the mean and covariance of the source (App. A.3), in float64; Σ of one image is 0.

    Sums are taken of bytes less 128, whose products are whole numbers, so no digit is lost before the centring. Asked
    again for the same source, it gives the same object; for equal images in large dimensions, what was kept on disk.
    """
    if (known := getattr(source, "gaussian", None)) is None:
        known = _kept(source) if _dimension(source) >= KEEP else Gaussian(*_fit(source), fitted=source)
        source.gaussian = known  # pyright: ignore[reportAttributeAccessIssue]
    return known


def _kept(source: Source) -> Gaussian:
    content = content_of(source)
    key, names = shelf.key_of("gaussian", 1, content), ("mean", "eigenvalues", "eigenvectors")
    known = _known.get(key)                             # equal images share what is large, each with its own source
    found = {name: getattr(known, name) for name in names} if known is not None else shelf.take(key)
    if found is None or set(found) != set(names):
        found = dict(zip(names, _fit(source)))
        shelf.keep(key, found, f"mean and covariance of {len(source)} images of {'×'.join(map(str, source.shape))}")
    tensors = {name: found[name] for name in names}
    _known[key] = fitted = Gaussian(**tensors, fitted=source, content=content)
    return fitted


def content_of(source: Source) -> str:
    """A checksum of the pixels and weights of a source."""
    digest = hashlib.sha256(repr([part.checksum() for part in source.parts]).encode())
    if source.log_weights is not None:
        digest.update(source.log_weights.numpy().data)
    return digest.hexdigest()


def _dimension(source: Source) -> int:
    return source.shape[0] * source.shape[1] * source.shape[2]


def _fit(source: Source) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, eigenvalues and eigenvectors."""
    count = len(source) if source.log_weights is None else int((source.log_weights > -torch.inf).sum())
    if count < _dimension(source):
        return _fit_span(source)
    second = torch.zeros(_dimension(source), _dimension(source), dtype=torch.float64)
    first = torch.zeros(_dimension(source), dtype=torch.float64)
    for x, weights in _weighted(source):
        first += weights @ x
        second.addmm_(x.T * weights, x)
    second.addr_(first, first, alpha=-1.0).div_(127.5**2)
    eigenvalues, eigenvectors = _eigen(second)
    return ((first + 0.5) / 127.5).view(source.shape), eigenvalues.clamp_(min=0.0), eigenvectors


def _fit_span(source: Source) -> tuple[Tensor, Tensor, Tensor]:
    """The same from the products of the images with each other, where they are fewer than dimensions.

    With rows √ν(x − μ), their products have the eigenvalues of Σ; an eigenvector v gives one of Σ: Σ_n v_n √ν(x − μ).
    """
    gram, weights = _products(source)
    mixed = gram @ weights
    gram.sub_(mixed[:, None]).sub_(mixed).add_(weights @ mixed)                # of centred images
    gram.mul_(weights.sqrt()[:, None]).mul_(weights.sqrt()).div_(127.5**2)
    values, vectors = _eigen(gram)
    del gram
    few = int((values <= 1e-15 * len(weights) * values[-1].clamp(min=0)).sum())        # the first ones are rounding
    values, vectors = values[few:], vectors[:, few:].mul_(weights.sqrt()[:, None])
    vectors.addr_(weights, vectors.sum(0), alpha=-1.0)  # so the images need no centring
    first = torch.zeros(_dimension(source), dtype=torch.float64)
    basis, start = torch.zeros(len(first), len(values), dtype=torch.float64), 0
    for x, share in _weighted(source):
        first += share @ x
        basis.addmm_(x.T, vectors[start : start + len(x)])
        start += len(x)
    basis /= basis.square().sum(0).sqrt()
    return ((first + 0.5) / 127.5).view(source.shape), values, basis


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix, which is lost.

    Of LAPACK's ways the one that takes no more memory than matrix and result, and is the quickest besides.
    """
    from scipy.linalg import eigh  # nobody else needs it

    values, vectors = eigh(matrix.numpy().T, driver="evr", overwrite_a=True, check_finite=False)
    return torch.from_numpy(values), torch.from_numpy(vectors)


def _products(source: Source) -> tuple[Tensor, Tensor]:
    """Σ_p x_n(p) x_m(p) of bytes less 128, exactly, and the weights ν, of the images that have weight."""
    chunks = [(x.float(), weights) for x, weights in _weighted(source)]
    weights = torch.cat([each for _, each in chunks])
    gram, row = torch.zeros(len(weights), len(weights), dtype=torch.float64), 0
    for place, (x, _) in enumerate(chunks):
        column = 0
        for y, _ in chunks[: place + 1]:
            here = gram[row : row + len(x), column : column + len(y)]
            for p in range(0, x.shape[1], EXACT):       # whole numbers below 2²⁴
                here += x[:, p : p + EXACT] @ y[:, p : p + EXACT].T
            if column < row:
                gram[column : column + len(y), row : row + len(x)] = here.T
            column += len(y)
        row += len(x)
    return gram, weights


def _weighted(source: Source) -> Iterator[tuple[Tensor, Tensor]]:
    """Images less 128 (n, d), and their weights (n,), float64; those without weight are passed over."""
    for pixels, log_weights, _ in source.chunks(CHUNK):
        x = pixels.flatten(1).double() - 128.0
        if log_weights is None:
            yield x, torch.full((len(x),), 1 / len(source), dtype=torch.float64)
        else:
            some = log_weights > -torch.inf
            yield x[some], log_weights[some].exp()
