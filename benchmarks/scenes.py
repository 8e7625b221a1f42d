"""Photograph-like scenes: dead leaves with textures of a 1/f spectrum and colours, seeded."""

from __future__ import annotations

import numpy as np

from fpmc.images import ImageSet


def textures(random: np.random.Generator, count: int, side: int) -> np.ndarray:
    """Grey noise with a 1/f amplitude, mean 0, variance 1: (count, side, side)."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)) + 1 / side
    spectrum = np.fft.rfft2(random.normal(size=(count, side, side))) / frequency
    waves = np.fft.irfft2(spectrum, (side, side))
    return (waves - waves.mean((1, 2), keepdims=True)) / waves.std((1, 2), keepdims=True)


def scene(random: np.random.Generator, library: np.ndarray) -> np.ndarray:
    """Discs of all sizes (density of radii ∝ 1/r³) over each other, each with its colour and texture: uint8."""
    side = library.shape[1]
    y, x = np.mgrid[:side, :side]
    picture = np.broadcast_to(random.normal(0, 0.4, 3)[:, None, None], (3, side, side)).copy()
    for _ in range(24):
        radius = 1 / np.sqrt(random.uniform((1.2 / side) ** 2, (8 / side) ** 2))
        radius, centre = 0.9 * radius, random.uniform(-0.1 * side, 1.1 * side, 2)
        disc = np.hypot(y - centre[0], x - centre[1]) < radius
        colour = random.normal(0, 0.35) + random.normal(0, 0.15, 3)
        grain = random.uniform(0.03, 0.2) * library[random.integers(len(library))]
        picture[:, disc] = (colour[:, None, None] + grain)[:, disc]
    shade = 0.25 * (random.normal() * (y / side - 0.5) + random.normal() * (x / side - 0.5))
    return (127.5 + 110 * (picture + shade)).clip(0, 255).astype(np.uint8)


def scenes(count: int, side: int = 64, seed: int = 0) -> ImageSet:
    """`count` of them in colour."""
    random = np.random.default_rng(seed)
    library = textures(random, 256, side)
    return ImageSet(np.stack([scene(random, library) for _ in range(count)]), name="scenes")
