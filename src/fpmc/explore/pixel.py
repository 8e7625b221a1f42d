"""What answers for an output pixel: its estimators, what they ask (q), and where else they answer (r)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fpmc.core.collection import Collection
from fpmc.core.gaussian import Gaussian
from fpmc.core.group import Group
from fpmc.core.precision import Full, Squares
from fpmc.core.response import Partition, Responses, SameAsQ
from fpmc.core.sources import Discrete, Translations
from fpmc.explore.pack import pack

LISTED = 4                                              # groups that are named


def pixel(collection: Collection, y: int, x: int) -> dict[str, Any]:
    """Σ_ℓ w_ℓ q_ℓ and Σ_ℓ w_ℓ r_ℓ with w_ℓ = r_ℓ(j) / Σ r(j), and the groups by their share in pixel j = (y, x)."""
    _, height, width = collection.shape
    total = collection.total[:, y, x].mean()
    asks, speaks = torch.zeros(height, width), torch.zeros(height, width)
    rows, squares, count = [], 0.0, 0
    for group in collection.groups:
        weights = (_response(group, y, x) / total).float()              # (L,)
        q, r = group.q.spread(weights[None, None]), group.r.mix(weights[None, None])
        asks += q[0, 0].mean(0)
        speaks += r[0, 0].mean(0)
        squares, count = squares + float(weights.square().sum()), count + int((weights > 0).sum())
        rows.append({"name": name_of(group), "share": float(weights.sum()), "estimators": int((weights > 0).sum())})
    rows.sort(key=lambda row: -row["share"])
    return {
        "q": pack(asks), "r": pack(speaks), "groups": rows[:LISTED], "more": max(0, len(rows) - LISTED),
        "estimators": count, "effective": 1 / squares, "asked": float(asks.sum() / asks.max().clamp(min=1e-30)),
    }


def _response(group: Group, y: int, x: int) -> Tensor:
    """r_ℓ at a pixel, the mean over the channels, (L,), without the dense form where there is a shorter way."""
    if isinstance(group.r, Partition):
        owner = group.r.owner[:, y, x]
        values = torch.zeros(len(group), dtype=torch.float64).index_add_(
            0, owner, torch.full((len(owner),), 1 / len(owner), dtype=torch.float64)
        )
    elif isinstance(group.r, SameAsQ) and group.r.precision.diagonal:
        # The distance of a unit vector from 0 is that entry of q.
        precision = group.r.precision
        unit = torch.zeros(1, precision.channels, precision.height, precision.width)
        unit[..., y, x] = precision.channels ** -0.5
        values = precision.distance(unit, torch.zeros_like(unit))[0, 0].double()
        values = values if group.r.count is None else values * group.r.count
    elif isinstance(group.r, Responses):
        values = group.r.values[..., y, x].double().mean(1)
    else:
        values = group.r.dense(torch.float64)[..., y, x].mean(1)
    return values if group.weight is None else values * _at(group.weight, y, x)


def _at(weight: Tensor, y: int, x: int) -> float:
    wide = weight[:, y if weight.shape[1] > 1 else 0, x if weight.shape[2] > 1 else 0]
    return float(wide.double().mean())


def name_of(group: Group) -> str:
    """A group in words: what it asks, of whom."""
    if isinstance(group.source, Gaussian):
        return "Gaussian (Wiener filter)"
    q = group.q
    if isinstance(q, Full):
        what = "whole images" + ("" if q.value == 1 else f", T = {q.value ** -0.5:.3g}")
    elif isinstance(q, Squares):
        what = f"{q.size}×{q.size} patches" + (f", {q.around:g} around" if q.around else "")
    else:
        what = f"masks of {max(1, round(q.entries / len(q) / q.channels))} pixels"
    if isinstance(group.source, Translations):
        return f"{what}, translated images"
    if isinstance(group.source, Discrete) and (copies := [p.name for p in group.source.parts if "+" in p.name]):
        return f"{what}, {', '.join(dict.fromkeys(copies))}"
    return what


def group_weights(collection: Collection) -> list[dict[str, Any]]:
    """How much each group has to say at a noise level: its share of Σ r, the mean over the pixels."""
    rows: dict[str, dict[str, Any]] = {}
    for group in collection.groups:
        share = float((group.total().expand(collection.shape) / collection.total).mean())
        row = rows.setdefault(name_of(group), {"name": name_of(group), "share": 0.0, "estimators": 0})
        row["share"], row["estimators"] = row["share"] + share, row["estimators"] + len(group)
    return list(rows.values())
