"""Sets of images from their recipes."""

from __future__ import annotations

from typing import Any

from fpmc.augmentation.augmented import Augmented
from fpmc.augmentation.kinds import KINDS
from fpmc.augmentation.synthetic import Kept, Synthetic
from fpmc.data import load_images
from fpmc.errors import InputError, in_short, show
from fpmc.images import ImageSet


def from_recipe(recipe: dict[str, Any], images: ImageSet | None = None) -> ImageSet:
    """The set whose `recipe()` this is: images by name, or augmented again as they were (App. B).

    images: those it was made of, if their name alone does not find them; their checksum is compared.
    """
    if type(recipe) is not dict:
        raise InputError(f"the recipe is damaged: it is {show(recipe)}, not names and values; save it again")
    try:
        if "kind" not in recipe:
            return _checked(load_images(recipe["name"]) if images is None else images, recipe)
        settings = dict(recipe)
        kind, amount, seed, base = (settings.pop(key) for key in ("kind", "amount", "seed", "of"))
        base = from_recipe(base, images)
        if kind == "synthetic":
            kept = Kept(str(settings.pop("network")), base.shape, seed, settings.pop("steps"))
            made: ImageSet = Synthetic(base, kept, amount)
        elif kind in KINDS:
            made = Augmented(base, KINDS[kind], amount, seed)
        else:
            raise InputError(f"augmentation {show(kind)} is not known here; register it first")
    except (KeyError, TypeError) as error:
        raise InputError(f"the recipe {repr(recipe)[:200]} is damaged ({in_short(error)}); save it again") from error
    if settings:
        unknown = ", ".join(map(str, settings))[:60]
        raise InputError(f"the recipe {repr(recipe)[:200]} has settings this version does not know: {unknown}")
    return made


def _checked(images: ImageSet, recipe: dict[str, Any]) -> ImageSet:
    if len(images) != recipe["count"] or images.checksum() != recipe["checksum"]:
        raise InputError(
            f"the recipe speaks of {recipe['count']} images called {recipe['name']!r}, and {images!r} are others; "
            "give the same images as `images=`"
        )
    return images
