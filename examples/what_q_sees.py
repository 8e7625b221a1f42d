"""
What q sees
===========

To denoise one pixel, which pixels of the noisy image should be looked at? All methods agree that it depends
on the noise: the more noise, the further one has to look. They differ in the shape.

The picture: the query precision q of the estimator for the pixel in the middle, by method and noise level;
light is 1. The last row is what a trained network looks at.
"""

# %%
# LS takes squares of a size that the paper tuned for each noise level; Lukoianov thresholds the Wiener filter;
# PSPC-Flex keeps the pixels that hold a share τ of a network's sensitivity map, the mean absolute gradient of
# an output pixel. The maps of the networks that come with the package come with it, too.

import torch

import fpmc
from fpmc.networks import load_maps
from fpmc.report.grid import image_grid

images = fpmc.load_images("fashion").subset(slice(2000))
sigmas = (5.32, 3.26, 1.92, 1.09, 0.585, 0.296)
middle = 14 * 28 + 14                                       # estimators go row by row, one for each pixel


def shade(values):                                          # 0 is dark grey, the largest is white
    return 1.6 * values / values.max() - 0.6


def q_of(denoiser, sigma):
    vectors = denoiser.at(sigma).groups[0].q.dense()        # (L, 1, 28, 28)
    return vectors[middle if len(vectors) > 1 else 0]       # one estimator of all ones where τ = 1


methods = (fpmc.presets.ls(images), fpmc.presets.lukoianov(images), fpmc.presets.pspc_flex(images))
rows = {}
for method in methods:
    chosen = [q_of(method, sigma) for sigma in sigmas]
    print(f"{method.name:10}", *(f"{int(q.sum()):4}" for q in chosen), "pixels")
    rows[method.name] = torch.stack([shade(q) for q in chosen])
maps = load_maps("fashion-ddpmpp")
nearest = [min(maps, key=lambda level: abs(level - sigma)) for sigma in sigmas]
rows["DDPM++"] = torch.stack([shade(maps[level][14, 14][None].float()) for level in nearest])

image_grid(rows, columns=[f"{sigma:g}" for sigma in sigmas], corner="σ")

# %%
# What does the size of q change? Below, the same noisy image, and the answers of LS with ever larger squares:
# small ones keep the noise, large ones fall back on whole training images.

x = fpmc.load_images("fashion", split="test").scaled([28])
z = x + 1.09 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
sizes = (3, 5, 9, 15, 27, 55)
answers = torch.cat([fpmc.presets.ls(images, schedule=size)(z, 1.09) for size in sizes])
errors = (answers - x).square().mean((1, 2, 3))
print("error", *(f"{error:.3f}" for error in errors))
image_grid({"LS": answers}, columns=[f"{size}×{size}" for size in sizes], corner="q")

# %%
# ``fpmc calibrate`` finds the best size for your data and network at each noise level. To let the data choose
# any q, not only squares, see :doc:`soft_masks`.

assert errors.argmin() not in (0, len(sizes) - 1)           # neither the smallest nor the largest is best
