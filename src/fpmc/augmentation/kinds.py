"""The paper's transformations of images (App. B), and the registry that takes yours."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fpmc.errors import InputError

Distribution = Callable[[Tensor], Tensor]               # numbers uniform in (0, 1) to values with this distribution
Transform = Callable[..., Tensor]                       # uint8 (n, C, H, W) and (n,) for each parameter -> uint8, alike
MOVES = ("up", "down", "left", "right")
TURNS = ("clockwise", "anticlockwise")
TURN = math.radians(4)
QUICK = ("xflip", "yflip", *MOVES)                      # as quickly made as read
OURS = ("xflip", "yflip", "translate", "rotate", "scale", "scale-ln", "synthetic", *MOVES, *TURNS)


@dataclass(frozen=True)
class Kind:
    """A transformation of images one by one, and how its parameters are drawn."""

    name: str
    transform: Transform
    distributions: tuple[Distribution, ...]

    def __call__(self, pixels: Tensor, parameters: Tensor) -> Tensor:
        """The transformed images, uint8 (n, C, H, W), parameters (n, P)."""
        result = self.transform(pixels, *parameters.unbind(1))
        if not isinstance(result, Tensor) or result.dtype != torch.uint8 or result.shape != pixels.shape:
            got = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            raise InputError(f"{self.name!r} must turn uint8 {tuple(pixels.shape)} into the same, it answered {got}")
        return result


KINDS: dict[str, Kind] = {}


def register(name: str, *distributions: Distribution) -> Callable[[Transform], Transform]:
    """Make a function from images to images an augmentation (App. B), as a decorator.

    It is called with uint8 pixels (n, C, H, W) and one float64 tensor (n,) of drawn values for each distribution, and
    answers uint8 pixels alike. Each image must be transformed on its own: any slice of a set may be asked for.
    """
    if name in OURS or not name:
        raise InputError(f"an augmentation cannot be called {name!r}; choose a name of your own")
    return _kind(name, *distributions)


def _kind(name: str, *distributions: Distribution) -> Callable[[Transform], Transform]:
    def add(transform: Transform) -> Transform:
        KINDS[name] = Kind(name, transform, distributions)
        return transform

    return add


def normal(u: Tensor) -> Tensor:
    """N(0, 1)."""
    return torch.special.ndtri(u)


def uniform(low: float, high: float) -> Distribution:
    """U(low, high)."""
    return lambda u: low + (high - low) * u


@_kind("xflip")
def xflip(pixels: Tensor) -> Tensor:
    """Horizontal reflection (App. B)."""
    return pixels.flip(3)


@_kind("yflip")
def yflip(pixels: Tensor) -> Tensor:
    """Vertical reflection (App. B)."""
    return pixels.flip(2)


@_kind("up")
def up(pixels: Tensor) -> Tensor:
    """One pixel up (beyond the paper); the row that is left behind repeats its neighbour."""
    return torch.cat([pixels[:, :, 1:], pixels[:, :, -1:]], 2)


@_kind("down")
def down(pixels: Tensor) -> Tensor:
    """One pixel down, likewise."""
    return torch.cat([pixels[:, :, :1], pixels[:, :, :-1]], 2)


@_kind("left")
def left(pixels: Tensor) -> Tensor:
    """One pixel to the left, likewise."""
    return torch.cat([pixels[..., 1:], pixels[..., -1:]], 3)


@_kind("right")
def right(pixels: Tensor) -> Tensor:
    """One pixel to the right, likewise."""
    return torch.cat([pixels[..., :1], pixels[..., :-1]], 3)


@_kind("translate", normal, normal)
def translate(pixels: Tensor, right: Tensor, down: Tensor) -> Tensor:
    """Translation (App. B) by right·W/8 and down·H/8 pixels."""
    height, width = pixels.shape[2:]
    unmoved = torch.eye(2, dtype=torch.float64).expand(len(pixels), 2, 2)
    return _warp(pixels, unmoved, -_pairs(right * width, down * height) / 8)


@_kind("rotate", uniform(-math.pi, math.pi))
def rotate(pixels: Tensor, angle: Tensor) -> Tensor:
    """Rotation (App. B) about the centre by so many radians, anticlockwise as seen."""
    cos, sin = angle.cos(), angle.sin()
    matrix = torch.stack([_pairs(cos, -sin), _pairs(sin, cos)], 1)
    return _warp(pixels, matrix, torch.zeros(len(pixels), 2, dtype=torch.float64))


@_kind("anticlockwise")
def anticlockwise(pixels: Tensor) -> Tensor:
    """Rotation by 4° (beyond the paper)."""
    return rotate(pixels, torch.full((len(pixels),), TURN, dtype=torch.float64))


@_kind("clockwise")
def clockwise(pixels: Tensor) -> Tensor:
    """Rotation by 4° the other way."""
    return rotate(pixels, torch.full((len(pixels),), -TURN, dtype=torch.float64))


@_kind("scale", lambda u: 2 ** (0.2 * normal(u)))
@_kind("scale-ln", lambda u: (math.sqrt(0.2) * normal(u)).exp())
def scale(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scaling about the centre (App. B): log2 s ∼ N(0, 0.2²) as EDM draws it; "scale-ln" is ln s ∼ N(0, 0.2)."""
    matrix = torch.eye(2, dtype=torch.float64) / factor[:, None, None]
    return _warp(pixels, matrix, torch.zeros(len(pixels), 2, dtype=torch.float64))


def _pairs(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x, y], 1)


def _warp(pixels: Tensor, matrix: Tensor, offset: Tensor) -> Tensor:
    from fpmc.augmentation.warp import warp  # numba takes a second to import

    return warp(pixels, matrix, offset)
