"""Denoisers, described: rows of the paper's tables, `lukoianov:tau=0.02` on the command line, networks, saved ones.

Nothing here imports torch before a denoiser is built.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpmc.errors import InputError
from fpmc.networks.shipped import MAPS, SHIPPED, weights_of
from fpmc.readers.text import read_json

if TYPE_CHECKING:
    from fpmc.core.sources import Source
    from fpmc.images import ImageSet
    from fpmc.process import Denoiser
    from fpmc.study.lab import Lab

TABLE1 = ("optimal", "wiener", "ls", "els", "pspc_square", "pspc_flex", "lukoianov")
PRESETS = (*TABLE1, "multiscale")
SCHEDULED = ("ls", "els", "pspc_square", "pspc_flex")
NETWORKS = ("network", "reference")                     # those of a study, whatever they are


@dataclass(frozen=True)
class Method:
    """A denoiser before it is built: what it is, its options, its source, and what of it is learned."""

    preset: str                                         # of fpmc.presets, "network", "reference", or a name or path
    options: tuple[tuple[str, Any], ...] = ()           # of the preset
    name: str = ""                                      # of a row, as paper.json has it
    label: str = ""                                     # as the paper writes it
    schedule: str = ""                                  # "calibrated": found here, instead of the paper's
    augment: str | None = None                          # added to the source
    amount: float = 1.0
    soft: str = ""                                      # what is learned: "q", "r" or "qr"
    target: str | None = None                           # of multi-scale weights: "network" or "clean"
    expensive: bool = False                             # an image costs many times more than with other methods

    def settings(self) -> dict[str, Any]:
        """What decides the denoiser, as plain values."""
        kept = {name: value for name, value in asdict(self).items() if name not in ("name", "label", "expensive")}
        if self.augment is None:
            del kept["amount"]
        kept["options"] = dict(self.options)
        return {name: value for name, value in kept.items() if value not in (None, "", {})}

    @property
    def slug(self) -> str:
        """The settings in short, for names of tasks."""
        settings = self.settings()
        values = [settings.pop("preset"), *settings.pop("options", {}).values(), *settings.values()]
        return " ".join(f"{value:.3g}" if isinstance(value, float) else str(value) for value in values)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Method:
        """The method of `settings`."""
        return cls(**{**settings, "options": tuple(settings.get("options", {}).items())})

    def option(self, name: str) -> Any:
        """The value of one option, None if it is not given."""
        return dict(self.options).get(name)

    def with_option(self, name: str, value: Any) -> Method:
        """The same method with another value of one option."""
        return replace(self, options=tuple({**dict(self.options), name: value}.items()))

    @cached_property
    def loaded(self) -> Denoiser | None:
        """A network or a saved FPMC that is not made of images; None if images are needed."""
        return None if self.preset in PRESETS else _load(self.preset)

    def build(self, images: ImageSet | Source | None, *, data: str | None = None, device: str = "cpu") -> Denoiser:
        """The denoiser, with what `Policy` says of the images where an option is not given."""
        if self.loaded is not None:
            return self.loaded.to(device) if device != "cpu" and hasattr(self.loaded, "to") else self.loaded  # pyright: ignore
        from fpmc import presets
        from fpmc.core.sources import as_source
        from fpmc.networks.mapfile import load_maps
        from fpmc.study.policy import Policy

        assert images is not None
        if self.preset not in PRESETS:
            return _saved(self.preset, as_source(images).parts[0])
        policy, options = Policy(as_source(images).parts[0], data), dict(self.options)
        if self.preset in SCHEDULED:
            options.setdefault("schedule", policy.dataset)
        if self.preset == "lukoianov":
            options.setdefault("tau", policy.tau)
        if self.preset == "pspc_flex":
            options.setdefault("maps", policy.maps() or "wiener")
        if isinstance(options.get("maps"), str) and options["maps"] != "wiener":
            options["maps"] = load_maps(options["maps"])
        return getattr(presets, self.preset)(images, **options)

    def title(self, denoiser: Denoiser) -> str:
        """What to write beside its images: two variants of one method differ by their options."""
        name = str(getattr(denoiser, "name", None) or Path(self.preset).stem)
        return " ".join([name, ", ".join(f"{key}={value}" for key, value in self.options)]).strip()

    def checksum(self) -> str | None:
        """Of the files it is made of, so that a run is not resumed with others of the same name."""
        named = [Path(value) for _, value in self.options if isinstance(value, str)]
        if self.preset not in PRESETS:
            named.append(weights_of(self.preset) if self.preset in SHIPPED else Path(self.preset))
        if self.preset == "pspc_flex" and not any(path.is_file() for path in named):
            named.append(MAPS)                          # one of those, whichever belongs to the images
        return checksum_of(*named)

    @property
    def folder(self) -> str:
        """Where its samples go; other weights under the same name go elsewhere."""
        checksum = self.checksum()
        text = self.preset + (":" if self.options else "") + ",".join(f"{key}={value}" for key, value in self.options)
        return re.sub(r"[^\w.=-]+", "_", text) + (f"-{checksum[:8]}" if checksum else "")


def checksum_of(*paths: Path) -> str | None:
    """Of files and all files in folders; None if there are none."""
    files = sorted(file for path in paths for file in (path, *path.rglob("*")) if file.is_file())
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest() if files else None


# On the command line


def parse_method(text: str) -> Method:
    """`name` or `name:key=value,…`, with the name and the keys checked; networks and saved denoisers are loaded."""
    name, _, rest = text.partition(":")
    name = name.replace("-", "_").lower()
    if name not in PRESETS:
        method = Method(text)
        _ = method.loaded                               # refused now, not when it is needed
        return method
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
    return Method(name, tuple(options.items()))


def parse_methods(texts: Sequence[str]) -> list[Method]:
    """Several of them, at least one, none twice."""
    methods = [parse_method(text) for text in texts]
    if not methods or any(a.settings() == b.settings() for a, b in combinations(methods, 2)):
        raise InputError(f"name each denoiser once, and at least one; got {' '.join(texts) or 'none'}")
    return methods


def need_images(methods: Iterable[Method]) -> bool:
    """Whether any of them is made of training images."""
    return any(method.loaded is None for method in methods)


def read_value(text: str) -> Any:
    """A number or a list as JSON writes it, anything else as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


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


def _saved(path: str, images: ImageSet) -> Denoiser:
    """A saved FPMC made of these images; if they are others, the error names the options that give the right ones."""
    from fpmc.core.fpmc import FPMC

    try:
        return FPMC.from_pretrained(path, images=images)
    except InputError as error:
        made_of = _recipe(path)
        if made_of is None or (len(images) == made_of["count"] and images.checksum() == made_of["checksum"]):
            raise
        count, name = made_of["count"], made_of["name"]
        raise InputError(
            f"{path} was made of {count} images called {name!r}, and these are {images!r}; "
            f"give the same ones: --data {name} --max_size {count}"
        ) from error


def _recipe(path: str) -> dict[str, Any] | None:
    """What the sources of a saved FPMC say of the images they are made of."""
    try:
        found: Any = read_json(Path(path) / "config.json", kind=dict)["structures"]
    except (InputError, KeyError):
        return None
    waiting = [found]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict) and {"name", "count", "checksum"} <= set(each):
            return each
        waiting += each.values() if isinstance(each, dict) else each if isinstance(each, list) else []
    return None


# Rows of the paper's tables, and ours

REFERENCE = Method("reference", name="ncsnpp", label="NCSN++")
NETWORK = Method("network", name="ddpmpp", label="DDPM++")
OPTIMAL = Method("optimal", name="optimal", label="Optimal")
WIENER = Method("wiener", name="wiener", label="Wiener")
LS = Method("ls", name="ls", label="LS")
ELS = Method("els", name="els", label="ELS", expensive=True)
PSPC_SQUARE = Method("pspc_square", name="pspc_square", label="PSPC-Square")
PSPC_FLEX = Method("pspc_flex", name="pspc_flex", label="PSPC-Flex")
SOFT = replace(PSPC_FLEX, name="soft", label="PSPC-Flex + soft Q/R", soft="qr")
MULTISCALE = Method("multiscale", name="multiscale", label="Multi-scale, fitted to DDPM++", target="network")
MULTISCALE_CLEAN = replace(
    MULTISCALE, name="multiscale-clean", label="Multi-scale, fitted to clean images", target="clean"
)
MOVED = replace(MULTISCALE, name="moved", label="Multi-scale with copies, fitted to DDPM++", augment="moved")
MOVED_CLEAN = replace(
    MULTISCALE_CLEAN, name="moved-clean", label="Multi-scale with copies, fitted to clean images", augment="moved"
)
BY_NAME = ("soft-calibrated", MOVED.name, MOVED_CLEAN.name)     # rows that are there if they are asked for


def lukoianov(tau: float) -> Method:
    return Method("lukoianov", (("tau", tau),), name="lukoianov", label=f"Lukoianov, τ = {tau:g}", expensive=True)


def table_rows(lab: Lab) -> tuple[Method, ...]:
    """The rows of the results table (Table 2) that there are for these data, and ours; the slowest only by name."""
    count = round(lab.added * len(lab.images))
    some = "" if lab.added == 1 else f" ({count:,} images)"
    els = replace(ELS, label=f"ELS ({lab.scale.els_images:,} images)") if lab.few_els else ELS
    rows = (
        NETWORK, OPTIMAL, WIENER, LS, *([] if lab.policy.large else [els]),
        PSPC_SQUARE, PSPC_FLEX, lukoianov(lab.policy.tau), SOFT,
        replace(SOFT, name="soft-xflip", label="PSPC-Flex + soft Q/R + x-flip", augment="xflip"),
        replace(
            SOFT, name="soft-synthetic", label=f"PSPC-Flex + soft Q/R + synthetic{some}",
            augment="synthetic", amount=lab.added,
        ),
        replace(SOFT, name="soft-calibrated", label="PSPC-Flex, calibrated, + soft Q/R", schedule="calibrated"),
        MULTISCALE, MULTISCALE_CLEAN, MOVED, MOVED_CLEAN,
    )
    names = [row.name for row in rows]
    if wrong := [name for name in lab.only if name not in names]:
        raise InputError(f"no row {wrong[0]!r} in the results of these data; there are {', '.join(names)}")
    wanted = lab.only or [name for name in names if name not in BY_NAME]
    return tuple(row for row in rows if row.name in wanted)
