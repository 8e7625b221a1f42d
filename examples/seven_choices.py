"""
One denoiser, seven choices
===========================

Every analytic denoiser of the paper's Table 1 is the same equation with another choice of query precisions Q
(what is looked at), response weights R (what is answered) and sources V (what is averaged).

The picture: one held-out image at three noise levels, denoised by all seven.
"""

# %%
# A denoiser takes one noise level for all images, or one for each. ELS gets 300 images, because it compares
# with every translation of every image.

import torch

import fpmc
from fpmc.report.grid import image_grid

images = fpmc.load_images("fashion").subset(slice(2000))
x = fpmc.load_images("fashion", split="test").scaled([28])          # (1, 1, 28, 28)
sigmas = torch.tensor([3.26, 1.09, 0.296])
noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
z = x + sigmas[:, None, None, None] * noise

presets = fpmc.presets
denoisers = (
    presets.optimal(images),
    presets.wiener(images),
    presets.ls(images),
    presets.els(images.subset(slice(300))),
    presets.pspc_square(images),
    presets.pspc_flex(images),
    presets.lukoianov(images),
)
rows = {"clean": x.expand_as(z), "noisy": z}
for denoiser in denoisers:
    rows[denoiser.name] = denoiser(z, sigmas)
    errors = (rows[denoiser.name] - x).square().mean((1, 2, 3))
    print(f"{denoiser.name:12}", *(f"{error:.3f}" for error in errors))

image_grid(rows, columns=[f"{sigma:g}" for sigma in sigmas.tolist()], corner="σ")

# %%
# The numbers are mean squared errors to the clean image; leaving z as it is has σ². At strong noise whole
# images help; at weak noise patches do, because no training image is this one.
#
# The choice can be read off any of them:

print(denoisers[4])

# %%
# Each has :doc:`a page of its own </methods/index>`. A choice of yours is three tensors, see
# :doc:`/howto/denoiser`.

local = [rows[denoiser.name] for denoiser in denoisers[1:]]
assert all((row - x)[-1].square().mean() < 0.296**2 for row in local)
