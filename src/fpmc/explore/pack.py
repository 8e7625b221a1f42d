"""Arrays as the page reads them: base64 in JSON, float32 where numbers count, bytes where a picture will do."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch
from torch import Tensor


def pack(values: Tensor) -> dict[str, Any]:
    """Any array, exactly: bytes as they are, everything else as float32."""
    array = values.detach().cpu()
    if array.dtype == torch.uint8:
        return {"shape": list(array.shape), "u8": _text(array.numpy())}
    return {"shape": list(array.shape), "f32": _text(array.float().numpy().astype("<f4"))}


def smaller(value: Any) -> Any:
    """The same answer with its float32 arrays in 256 steps from their least to their largest value."""
    if isinstance(value, list):
        return [smaller(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "f32" not in value:
        return {key: smaller(item) for key, item in value.items()}
    array = unpack(value).astype(np.float64)
    low, high = float(array.min()), float(array.max())
    steps = np.round(255 * (array - low) / (high - low if high > low else 1.0)).astype(np.uint8)
    return {"shape": value["shape"], "low": low, "high": high, "u8": _text(steps)}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """What `pack` was given."""
    kind, text = ("<f4", packed["f32"]) if "f32" in packed else (np.uint8, packed["u8"])
    return np.frombuffer(base64.b64decode(text), kind).reshape(packed["shape"])


def _text(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
