"""A new V: a mixture of sources, each with a weight of its own, whatever their sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fpmc.core.sources import Discrete, Source


class Mixture(Discrete, kind="mixture"):
    """ν = Σ_k weight_k ν_k."""

    def __init__(self, sources: tuple[Source, ...], weights: tuple[float, ...]) -> None:
        self.sources, self.weights = tuple(sources), tuple(weights)
        self.parts = tuple(part for source in self.sources for part in source.parts)
        self.log_weights = torch.cat([
            self._uniform(source) + torch.tensor(weight, dtype=torch.float64).log()
            for source, weight in zip(self.sources, self.weights, strict=True)
        ])

    @staticmethod
    def _uniform(source: Source) -> torch.Tensor:
        even = torch.full((len(source),), 1 / len(source), dtype=torch.float64).log()
        return even if source.log_weights is None else source.log_weights

    def arguments(self) -> dict[str, Any]:
        return {"sources": self.sources, "weights": self.weights}

    def changed(self, change: Callable[[Source], Source]) -> Mixture:
        return Mixture(tuple(change(source) for source in self.sources), self.weights)
