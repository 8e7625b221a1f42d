"""The networks and sensitivity maps that come with the package. Importing this imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fpmc.images import ImageSet

WEIGHTS = Path(__file__).parent / "weights"     # NAME.safetensors, its model card NAME.md, the card's data NAME.json
MAPS = WEIGHTS / "maps"
LOOKED_AT = 5                                   # images by which a shipped set is known
SHIPPED = tuple(sorted(path.stem for path in WEIGHTS.glob("*.safetensors")))


def weights_of(name: object) -> Path:
    """The file of a shipped network."""
    return WEIGHTS / f"{name}.safetensors"


def card_of(name: str) -> dict[str, Any]:
    """The data of a shipped network's model card: images seen, errors by noise level, learning curve."""
    return json.loads((WEIGHTS / f"{name}.json").read_text(encoding="utf-8"))


def quality_of(name: str) -> dict[str, Any]:
    """How good a shipped network is: {"images_seen": …, "hours": …, "below_wiener_percent": {σ: …}}.

    The last says by how many percent its error on test images is below that of the best linear denoiser.
    """
    card = card_of(name)
    below = {
        float(sigma): round(100 * (1 - error / card["wiener"][sigma]), 1) for sigma, error in card["validation"].items()
    }
    return {"images_seen": card["images_seen"], "hours": card["hours"], "below_wiener_percent": below}


def quality_line(name: str, sigmas: tuple[float, ...] = (0.1, 0.5, 2.0)) -> str:
    """The same in one line, for people."""
    quality = quality_of(name)
    below = ", ".join(f"{quality['below_wiener_percent'][sigma]:g} % at σ={sigma:g}" for sigma in sigmas)
    return f"{name}: {quality['images_seen']:,} images seen, error below the best linear denoiser's by {below}"


def data_of(images: ImageSet) -> str | None:
    """The set with networks in the package that these images are of: by its name *and* by a few of its pixels."""
    import torch

    from fpmc.data import load_images
    from fpmc.errors import InputError

    name = images.name
    if name not in {network.rpartition("-")[0] for network in SHIPPED}:
        return None
    try:
        theirs = load_images(name)
    except InputError:                                  # not on this machine
        return None
    some = torch.linspace(0, len(images) - 1, LOOKED_AT).long()
    found = [(theirs.ids == number).nonzero()[:1, 0] for number in images.ids[some]]
    if theirs.shape != images.shape or any(len(place) == 0 for place in found):
        return None
    return name if torch.equal(theirs.read(torch.cat(found)), images.read(some)) else None
