"""`fpmc train`: train a DDPM++ or NCSN++ network; started again with the same --outdir, it goes on."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fpmc.cli.options import parse, progress_bar

if TYPE_CHECKING:
    from fpmc.images import ImageSet
    from fpmc.networks.precond import EDMPrecond
    from fpmc.networks.training import Training
    from fpmc.report.run import RunDirectory

STOPS = (signal.SIGINT, signal.SIGTERM)
# What may change from one sitting to the next without making the checkpoint another run's.
FREE = (
    *("outdir", "images", "fall", "minutes", "ema_halflife", "precision"),
    *("validation", "save_minutes", "look_minutes", "device", "threads"),
)
AHEAD = 32  # steps whose posterior targets are computed together


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a network by EDM's loss; Ctrl-C saves, and the same command goes on."""

    outdir: Path = Path("runs/train")                   # run directory to write or to go on with
    data: str = "fashion"                               # training images, a name or a path
    held_out: str | None = None                         # images to validate on; none: the test split of --data
    arch: Literal["ddpmpp", "ncsnpp"] = "ddpmpp"        # DDPM++ or NCSN++
    channels: int = 32                                  # width at full resolution
    mults: tuple[int, ...] = (1, 2, 2)                  # width at each halving, in multiples of --channels
    blocks: int = 2                                     # blocks per resolution
    attention: tuple[int, ...] = (16,)                  # resolutions with self-attention
    dropout: float = 0.0                                # dropout probability
    fourier_scale: float = 16.0                         # of NCSN++'s embedding; noise levels closer than 1/scale differ
    conditional: bool = False                           # train on the labels too
    init: str | None = None                             # start from the weights of this network
    images: int = 1_000_000                             # images to see in all
    minutes: float | None = None                        # stop this sitting after so many minutes
    batch: int = 64                                     # images per step
    optimizer: Literal["adam", "muon"] = "adam"         # "muon": orthogonal steps, which learn from fewer images
    rate: float = 1e-3                                  # learning rate
    schedule: Literal["constant", "cosine"] = "constant"  # course of the rate after the warm-up
    fall: int = 0                                       # a constant rate ends in a cosine to 0 over so many images
    warmup: int = 20_000                                # images until the rate is full
    clip: float = 1.0                                   # largest gradient norm
    ema_halflife: int = 500_000                         # half-life of the moving average, in images
    ema_rampup: float = 0.05                            # the half-life is at most this share of the images seen
    p_mean: float = -1.2                                # mean of ln σ
    p_std: float = 1.2                                  # standard deviation of ln σ
    xflip: bool = False                                 # mirror half of the images
    target: Literal["clean", "posterior"] = "clean"     # "posterior": E[x | z] at high σ, the same loss with less noise
    posterior_from: float = 1.0                         # from which σ on
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of convolutions; "auto": bfloat16 if the CPU has it
    seed: int = 0                                       # decides weights, order and noise
    validation: int = 512                               # held-out images in the loss by noise level
    save_minutes: float = 5.0                           # time between checkpoints
    look_minutes: float = 20.0                          # time between validations and sample grids
    device: str = "auto"                                # "auto" is CUDA if there is one, else the CPU
    threads: int | None = None                          # CPU threads


def main(args: list[str]) -> None:
    config = parse(Train, args, "train")

    import torch

    import fpmc.networks.training as training
    from fpmc.data import load_images
    from fpmc.networks import load_network
    from fpmc.report.run import RunDirectory

    if config.threads:
        torch.set_num_threads(config.threads)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
    images = load_images(config.data)
    held_out = load_images(config.held_out) if config.held_out else load_images(config.data, split="test")
    settings = {name: getattr(config, name) for name in training.Recipe.__dataclass_fields__}
    if config.precision == "auto":
        settings["precision"] = "bfloat16" if device == "cpu" and training.has_bfloat16() else "float32"
    recipe = training.Recipe(**settings)
    state = training.Training(build(config, images).to(device), recipe)
    if config.init is not None:
        state.adopt(load_network(config.init), seen_by(config.init))
    free = FREE if config.schedule == "constant" else tuple(name for name in FREE if name != "images")
    run = RunDirectory(config.outdir, config, command="train", free=free)
    if (run.path / "checkpoint.pt").exists():
        state.restore(run.path / "checkpoint.pt")
        run.say(f"resumed at {state.step * recipe.batch:,} images of {recipe.images:,}")
    count = sum(parameter.numel() for parameter in state.net.parameters())
    before = f"; the weights to start from have seen {state.before:,} images" if state.before else ""
    run.say(
        f"{config.arch}, {count:,} parameters, {len(images):,} images of {images.name!r}, "
        f"on {device} in {recipe.precision}{before}"
    )
    _run(config, state, images, held_out.subset(slice(0, config.validation)), run)


def seen_by(source: str) -> int:
    """How many images the weights of `--init` have seen: a shipped network, or a file in a run directory; else 0."""
    from fpmc.networks.shipped import SHIPPED, card_of

    if source in SHIPPED:
        return card_of(source)["images_seen"]
    metrics = Path(source).with_name("metrics.json")
    if not metrics.is_file():
        return 0
    found = json.loads(metrics.read_text(encoding="utf-8"))
    return int(found.get("seen", found.get("images", 0)))


def build(config: Train, images: ImageSet) -> EDMPrecond:
    """The network of the configuration, with weights that depend on the seed alone."""
    import torch

    from fpmc.errors import InputError
    from fpmc.networks.layers import FourierEmbedding
    from fpmc.networks.precond import EDMPrecond
    from fpmc.networks.training import data_deviation
    from fpmc.networks.unet import ARCHITECTURES

    channels, height, width = images.shape
    if height != width:
        raise InputError(f"the networks take square images; {images.name!r} has {height}×{width}")
    if config.conditional and images.labels is None:
        raise InputError(f"--conditional needs labels, and {images.name!r} has none")
    settings: dict[str, Any] = dict(
        ARCHITECTURES[config.arch],
        img_resolution=height,
        img_channels=channels,
        label_dim=int(images.labels.max()) + 1 if config.conditional and images.labels is not None else 0,
        sigma_data=round(data_deviation(images), 4),
        model_channels=config.channels,
        channel_mult=config.mults,
        num_blocks=config.blocks,
        attn_resolutions=config.attention,
        dropout=config.dropout,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        net = EDMPrecond(**settings)
    if isinstance(net.model.map_noise, FourierEmbedding):
        net.model.map_noise.freqs *= config.fourier_scale / net.model.map_noise.SCALE
    return net


def _run(config: Train, state: Training, images: ImageSet, held_out: ImageSet, run: RunDirectory) -> None:
    import time

    from fpmc.networks.targets import PosteriorMean
    from fpmc.networks.training import train

    began = saved = looked = time.monotonic()
    recipe = state.recipe
    targets = {"optimal": PosteriorMean(images), "ahead": AHEAD} if recipe.target == "posterior" else {}
    look_of_bar = {"unit": "img", "unit_scale": True, "smoothing": 0.02}
    with progress_bar("train", run, **look_of_bar) as tell, _stop_between_steps() as asked:
        for progress in train(state, images, **targets):
            tell(progress.images, recipe.images, f"loss {state.loss:.4f}")
            now = time.monotonic()
            if now - saved > 60 * config.save_minutes:
                state.save(run.path / "checkpoint.pt")
                saved = now
            if now - looked > 60 * config.look_minutes:
                look(state, held_out, run)
                looked = time.monotonic()
            if asked or (config.minutes is not None and now - began > 60 * config.minutes):
                break
    state.save(run.path / "checkpoint.pt")
    if asked:
        run.say(f"stopped and saved at {state.step * recipe.batch:,} images; the same command goes on")
        raise KeyboardInterrupt
    look(state, held_out, run)
    minutes = f"{state.seconds / 60:.0f} minutes of processor time"
    run.say(f"{state.step * recipe.batch:,} of {recipe.images:,} images seen in {minutes}, {state.seen:,} in all")


@contextmanager
def _stop_between_steps() -> Iterator[list[int]]:
    """Ctrl-C and kill are heard but wait for the step under way, so that what is saved is a whole step."""
    asked: list[int] = []
    before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in STOPS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def look(state: Training, held_out: ImageSet, run: RunDirectory) -> None:
    """Keep the moving average as a network, with its validation loss by noise level and a grid of its samples."""
    from fpmc.networks import save_network
    from fpmc.networks.training import validate
    from fpmc.report.grid import image_grid
    from fpmc.sampling import sample

    save_network(state.ema, run.path / "network.safetensors")
    device = next(state.ema.parameters()).device
    errors = validate(state.ema, held_out, device=device)
    where = {"images": state.step * state.recipe.batch, "seen": state.seen, "seconds": round(state.seconds, 1)}
    run.event(**where, loss=state.loss, held_out=len(held_out), validation=errors)
    run.metrics({**where, "loss": state.loss, "held_out": len(held_out), "validation": errors})
    found = " ".join(f"{sigma:g}:{error:.4f}" for sigma, error in errors.items())
    run.note(f"{state.seen:,} images seen, loss {state.loss:.4f}, held out {found}")
    drawn = sample(state.ema, seeds=range(32), device=device).images
    rows = {f"seeds {i}–{i + 7}": drawn[i : i + 8] for i in range(0, 32, 8)}
    run.picture("samples.png", image_grid(rows, title=f"{run.path.name} after {state.seen:,} images"))
