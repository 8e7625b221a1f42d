"""
Augmentation
============

The third choice is what is averaged. Augmented copies of the images can join the source; nothing else changes
(Section 4.3).

The picture: six images, what the kinds of the paper make of them, and a kind of our own.
"""

# %%
# A kind of augmentation is a function on bytes; its random parameters are drawn for each copy, the same on
# every machine.

import torch

import fpmc
from fpmc.augmentation import register, uniform
from fpmc.report.grid import image_grid


@register("gain", uniform(0.5, 1.5))
def gain(pixels, factor):                                   # uint8 (n, C, H, W), float64 (n,)
    return (pixels * factor[:, None, None, None]).round().clamp(0, 255).byte()


images = fpmc.load_images("fashion").subset(slice(1500))
few = images.subset(slice(6))
kinds = ("xflip", "yflip", "translate", "rotate", "scale", "gain")
image_grid({"images": few.scaled()} | {kind: fpmc.augment(few, kind).scaled() for kind in kinds})

# %%
# ``|`` unites sources. Does a copy help? That depends on whether the data have the symmetry: errors of
# PSPC-Square on held-out images.

x = fpmc.load_images("fashion", split="test").scaled(range(24))
noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
sigmas = (1.09, 0.296)
alone = fpmc.Source(images)
errors = {}
sources = {"images alone": alone} | {f"and {kind}": alone | fpmc.augment(images, kind) for kind in kinds}
for name, source in sources.items():
    denoiser = fpmc.presets.pspc_square(source)
    errors[name] = [(denoiser(x + sigma * noise, sigma) - x).square().mean().item() for sigma in sigmas]
    print(f"{name:14}", *(f"{error:.4f}" for error in errors[name]))

# %%
# Copies share the id of their original, so leaving an image out takes its copies, too. Reflections are made
# when they are read and take no memory.

union = alone | fpmc.augment(images, "xflip")
print(union)
print(union.without(images.ids[:10]))

assert errors["and xflip"][1] < errors["images alone"][1]

# %%
# More: :doc:`/howto/augmentation`, and what each kind does to samples in :doc:`/results`.
