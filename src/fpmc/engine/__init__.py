"""The engine: the plan decides how estimators are evaluated, kernels do it, a reduction takes what is wanted."""

from __future__ import annotations

from fpmc.engine.plan import Plan, make_plan
from fpmc.engine.reduce import Mass, Mean, Reduction, Shares
from fpmc.engine.run import Alone, denoise, evaluate
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State

__all__ = [
    "Alone", "Call", "Mass", "Mean", "Plan", "Reduction", "Settings", "Shares", "State", "denoise", "evaluate",
    "make_plan",
]
