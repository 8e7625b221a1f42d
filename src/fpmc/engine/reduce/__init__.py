"""What is taken of the posterior: a reduction is one file."""

from __future__ import annotations

from fpmc.engine.reduce.mass import Mass
from fpmc.engine.reduce.mean import Mean
from fpmc.engine.reduce.reduction import Part, Reduction, Want
from fpmc.engine.reduce.top import Shares, Weights

__all__ = ["Mass", "Mean", "Part", "Reduction", "Shares", "Want", "Weights"]
