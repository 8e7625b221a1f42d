"""Denoisers as the command line names them: `ls`, `lukoianov:tau=0.02,rule=official`, a network, a saved FPMC."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpmc.errors import InputError
from fpmc.networks.shipped import SHIPPED, weights_of

if TYPE_CHECKING:
    from fpmc.core.sources import Source
    from fpmc.images import ImageSet
    from fpmc.process import Denoiser

TABLE1 = ("optimal", "wiener", "ls", "els", "pspc_square", "pspc_flex", "lukoianov")
PRESETS = (*TABLE1, "multiscale")


@dataclass(frozen=True)
class Spec:
    """A denoiser's name and options, checked, before it is built from training images."""

    text: str                           # as given
    name: str                           # of a preset, or where the denoiser was loaded from
    options: dict[str, Any]
    loaded: Denoiser | None = None      # a network or a saved FPMC needs no images and is here already

    def build(self, images: ImageSet | Source | None) -> Denoiser:
        """`fpmc.presets.<name>(images, **options)`, unless it was loaded or is saved and made of these images."""
        if self.loaded is not None:
            return self.loaded
        if self.name not in PRESETS:
            from fpmc.core.fpmc import FPMC
            from fpmc.core.sources import Source

            return FPMC.from_pretrained(self.name, images=images.parts[0] if isinstance(images, Source) else images)
        from fpmc import presets
        from fpmc.networks.mapfile import load_maps

        options = dict(self.options)
        if options.get("maps", "wiener") != "wiener":
            options["maps"] = load_maps(options["maps"])
        return getattr(presets, self.name)(images, **options)

    def label(self, denoiser: Denoiser) -> str:
        """What to write beside its images: two variants of one method differ by their options."""
        name = str(getattr(denoiser, "name", None) or Path(self.name).stem)
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{name} {options}".strip()

    def checksum(self) -> str | None:
        """Of the files it is made of, so that a run is not resumed with others of the same name."""
        named = [Path(value) for value in self.options.values() if isinstance(value, str)]
        if self.loaded is not None:
            named.append(weights_of(self.name) if self.name in SHIPPED else Path(self.name))
        files = sorted(file for path in named for file in (path, *path.rglob("*")) if file.is_file())
        digest = hashlib.sha256()
        for file in files:
            digest.update(file.read_bytes())
        return digest.hexdigest() if files else None


def parse_spec(text: str) -> Spec:
    """`name` or `name:key=value,…`, with the name and the keys checked."""
    name, _, rest = text.partition(":")
    name = name.replace("-", "_").lower()
    if name not in PRESETS:
        return Spec(text, text, {}, _load(text))
    from fpmc import presets

    parameters = inspect.signature(getattr(presets, name)).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in known:
            takes = f"takes {', '.join(known)}, written like {name}:key=value" if known else "takes no options"
            raise InputError(f"denoiser {text!r}: {name} {takes}; got {part!r}")
        options[key] = read_value(value)
    return Spec(text, name, options)


def _load(text: str) -> Denoiser | None:
    """A network or a saved FPMC; None if the images of the latter must be given."""
    from fpmc.core.fpmc import FPMC
    from fpmc.networks import load_network

    if (Path(text) / "model.safetensors").is_file():
        try:
            return FPMC.from_pretrained(text)
        except InputError:
            return None
    try:
        return load_network(text)
    except InputError as error:
        close = difflib.get_close_matches(text.replace("-", "_"), PRESETS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"analytic ones are {', '.join(PRESETS)}"
        raise InputError(f"no denoiser {text!r} ({hint}): {error}") from error


def parse_specs(texts: Sequence[str]) -> list[Spec]:
    """Several of them, at least one, none twice."""
    specs = [parse_spec(text) for text in texts]
    if not specs or any((a.name, a.options) == (b.name, b.options) for a, b in combinations(specs, 2)):
        raise InputError(f"name each denoiser once, and at least one; got {' '.join(texts) or 'none'}")
    return specs


def read_value(text: str) -> Any:
    """A number or a list as JSON writes it, anything else as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
