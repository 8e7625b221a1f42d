"""Every method by name: Table 1 of the paper, and multi-scale collections beyond it."""

from __future__ import annotations

from fpmc.methods.multiscale import mixture, multiscale
from fpmc.methods.table1 import els, ls, lukoianov, optimal, pspc_flex, pspc_square, wiener

__all__ = ["els", "ls", "lukoianov", "mixture", "multiscale", "optimal", "pspc_flex", "pspc_square", "wiener"]
