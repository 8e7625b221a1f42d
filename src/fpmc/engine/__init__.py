"""The engine: `plan` decides how a group of estimators is evaluated, the kernels do it."""

from __future__ import annotations

from fpmc.engine.plan import Plan, Settings, Step, Task, make_plan
from fpmc.engine.run import denoise

__all__ = ["Plan", "Settings", "Step", "Task", "denoise", "make_plan"]
