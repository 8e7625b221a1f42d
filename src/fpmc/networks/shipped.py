"""The networks and sensitivity maps that come with the package. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"     # NAME.safetensors, with its model card NAME.md
MAPS = Path(__file__).parent / "weights" / "maps"
SHIPPED = tuple(sorted(path.stem for path in WEIGHTS.glob("*.safetensors")))


def weights_of(name: object) -> Path:
    """The file of a shipped network."""
    return WEIGHTS / f"{name}.safetensors"
