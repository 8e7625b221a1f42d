"""What the page may ask, checked before anything is computed: unknown keys and numbers out of range are refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, le=2**32 - 1, strict=True)]
Sigma = Annotated[float, Field(ge=1e-3, le=1e3, allow_inf_nan=False)]
Value = Annotated[float, Field(ge=-1e3, le=1e3, allow_inf_nan=False)]


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Own(Asked):
    """A picture that was dropped on the page, at a noise level."""

    picture: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    sigma: Sigma
    noise: bool = False                                 # the picture is clean: add noise of the seed


class Paint(Asked):
    """Pixels of a denoiser's z at one level that are set to a value."""

    denoiser: Count
    level: Count
    strokes: Annotated[tuple[tuple[Count, Count, Value], ...], Field(max_length=20_000)]      # y, x, value


class Start(Asked):
    """Where sampling begins: noise of a seed, a picture, or either with something painted on it."""

    seed: Count = 0
    own: Own | None = None
    paint: Paint | None = None


class Way(Asked):
    """The path of a denoiser from there, as if some images had never been there."""

    denoiser: Count
    start: Start = Start()
    without: Annotated[tuple[Annotated[int, Field(ge=-(2**62), le=2**62)], ...], Field(max_length=256)] = ()


class Answer(Way):
    """D(z, σ) with and without some images, for the same z: that of the whole denoiser's path at a level."""

    level: Count


class WhichImages(Way):
    """Whose answer it is, at the pixels of a box (top, left, bottom, right)."""

    level: Count
    region: tuple[Count, Count, Count, Count] | None = None
    top: Annotated[int, Field(ge=1, le=4096)] = 16


class Pixel(Asked):
    """What answers for a pixel."""

    denoiser: Count
    sigma: Sigma
    y: Count
    x: Count


class Level(Asked):
    """A noise level of the grid, for the curves."""

    denoiser: Count
    level: Annotated[int, Field(ge=0, le=17)]
    seed: Count = 0
