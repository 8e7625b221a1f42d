"""
Multi-scale
===========

Which patch size is right? All of them, a little. One collection can hold patches of several sizes, whole
images and the Wiener filter, and how much say each has is a least-squares problem with a closed form. No
network is needed: the target may be the clean images themselves (beyond the paper).

The picture: who has how much say, by noise level.
"""

# %%

import matplotlib.pyplot as plt
import torch

import fpmc
from fpmc.learn.fit import labels
from fpmc.report.grid import image_grid

images = fpmc.load_images("fashion").subset(slice(1500))
base = fpmc.presets.multiscale(images, sizes=(3, 5, 9, 15), around=(), temperatures=())
sigmas, fits = (5.32, 1.92, 0.585, 0.14), []
d = fpmc.fit_response(base, "clean", images, sigmas=sigmas, count=64, progress=fits.append)

names = ("Wiener", "square 3", "square 5", "square 9", "square 15", "optimal")
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
left = [0.0] * len(fits)
for name in names:
    share = [dict(zip(labels(base.at(fit.sigma)), fit.weights.tolist())).get(name, 0.0) for fit in fits]
    axes.barh([f"σ = {fit.sigma:g}" for fit in fits], share, left=left, label=name)
    left = [start + width for start, width in zip(left, share)]
axes.set(xlim=(0, 1), xlabel="share of the answer")
axes.invert_yaxis()
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %%
# Errors on held-out images, beside one patch size per noise level:

x = fpmc.load_images("fashion", split="test").scaled(range(32))
noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
rivals = (fpmc.presets.optimal(images), fpmc.presets.wiener(images), fpmc.presets.pspc_square(images), d)
errors = {}
for each in rivals:
    errors[each.name] = [(each(x + sigma * noise, sigma) - x).square().mean().item() for sigma in sigmas]
    print(*(f"{error:.4f}" for error in errors[each.name]), each.name)
assert all(errors[d.name][k] < min(errors[r.name][k] for r in rivals[:3]) * 1.02 for k in range(len(sigmas)))

# %%

z = x[28:29] + 1.92 * noise[28:29]
image_grid({"": torch.cat([x[28:29], z, *(each(z, 1.92) for each in rivals)])},
           columns=["clean", "noisy", "Optimal", "Wiener", "PSPC-Square", "multi-scale"])

# %%
# The proof and the limits are in :doc:`/multiscale`.
