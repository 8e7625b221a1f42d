"""The engine: `plan` decides how a group of estimators is evaluated, the kernels do it."""

from __future__ import annotations

from fpmc.engine.plan import Plan, Settings, Step, Task, make_plan
from fpmc.engine.run import answers, denoise

__all__ = ["Plan", "Settings", "Step", "Task", "answers", "denoise", "make_plan"]
