"""A tiny laboratory: 8×8 images, two untrained networks, and a scale at which everything takes seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from fpmc.images import ImageSet
from fpmc.learn.finetune import Tuning
from fpmc.networks import EDMPrecond, save_network
from fpmc.study.lab import Lab
from fpmc.study.scale import SCALES

SETTINGS = {
    "img_channels": 1, "label_dim": 0, "model_channels": 8, "channel_mult": [1, 1, 1], "num_blocks": 1,
    "attn_resolutions": [],
}
TINY = replace(
    SCALES["laptop"], seeds=4, expensive_seeds=2, batch=2, els_images=12, points=4, expensive_points=3, draws=1,
    tuning=Tuning(steps=2, batch=4, monte_carlo=20, validate_every=1, validation=4, floor_q=0.0, floor_r=0.0),
    tuned=(1.09, 0.296), joint=(80.0, 1.09), synthetic=10, held_out=8, kinds=("xflip", "rotate", "synthetic"),
    amounts=(0.2, 0.5), augmented=(0.296, 1.09), calibrated=("ls", "pspc_flex"), calibration=2, every=4, fit=16,
    shown=2,
)


def smooth_images(count: int, side: int, seed: int = 0) -> ImageSet:
    """Grey images with neighbours that know each other."""
    noise = torch.randn(count, 1, side + 3, side + 3, generator=torch.Generator().manual_seed(seed))
    pixels = (127.5 + 160 * torch.nn.functional.avg_pool2d(noise, 4, 1)).clip(0, 255).byte()
    return ImageSet(pixels, name="smooth")


def small_network(side: int, seed: int) -> EDMPrecond:
    """An untrained network whose last layer is not 0, so that it answers more than a scaled z."""
    net = EDMPrecond(img_resolution=side, **SETTINGS)
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        parameter.data = 0.05 * torch.randn(parameter.shape, generator=generator)
    return net.eval().requires_grad_(False)


def small_lab(**changes) -> Lab:
    """Forty training and eight held-out images."""
    images = smooth_images(48, 8)
    settings = {
        "network": small_network(8, 0), "reference": small_network(8, 1), "scale": TINY,
        "stamps": {"network": "a", "reference": "b"}, "held_out": images.subset(slice(40, None)),
    }
    return Lab(images.subset(slice(40)), **settings | changes)


def small_files(folder: Path) -> list[str]:
    """The same as files, and the options that name them."""
    images = smooth_images(48, 8)
    for split, part in (("train", images.pixels[:40]), ("test", images.pixels[40:])):
        (folder / "data" / split).mkdir(parents=True)
        for index, image in enumerate(part):
            Image.fromarray(image[0].numpy()).save(folder / "data" / split / f"{index:03}.png")
    for name, seed in (("network", 0), ("reference", 1)):
        save_network(small_network(8, seed), folder / f"{name}.safetensors")
    paths = {"data": "data", "network": "network.safetensors", "reference": "reference.safetensors"}
    return [word for option, path in paths.items() for word in (f"--{option}", str(folder / path))]
