"""
Plug in a network
=================

A network is anything that can be called as ``network(z, sigma) -> x0``. How well does an analytic denoiser
predict it? Sample both from the same noise and compare image by image (Section 5).

The picture: samples of the DDPM++ that comes with the package, and of three analytic denoisers, from the same
seeds.
"""

# %%

import torch

import fpmc
from fpmc.report.grid import image_grid

images = fpmc.load_images("fashion").subset(slice(3000))
network = fpmc.load_network("fashion-ddpmpp")               # or an EDM .pkl, a .safetensors, a diffusers folder
reference = fpmc.sample(network, seeds=range(8))
rows = {"DDPM++": reference.images}
scores = {}
for denoiser in (fpmc.presets.pspc_flex(images), fpmc.presets.pspc_square(images), fpmc.presets.wiener(images)):
    samples = fpmc.sample(denoiser, seeds=range(8))
    scores[denoiser.name] = fpmc.compare(samples, reference)
    print(f"{denoiser.name:12} r² {scores[denoiser.name].r2:.2f} ± {scores[denoiser.name].r2_se:.2f}")
    rows[denoiser.name] = samples.images

image_grid(rows, columns=[str(seed) for seed in range(8)], corner="seed")

# %%
# Eight seeds say little (the ± is a standard error over them); :doc:`/results` has more. PSPC-Flex takes its
# masks from this network.

assert scores["PSPC-Flex"].r2 > scores["Wiener"].r2

# %%
# Networks that predict noise, for another process, are translated. Here one of DDPM's kind is made up from the
# network above, so that the detour can be checked: at noise level σ it is asked at the time whose σ/α is σ,
# with αz.

process = fpmc.process.VP("linear")


def predicts_noise(z, t):                                   # in place of yours
    return process.epsilon(process.denoise(network, z, t), z, t)


def denoiser(z, sigma):
    t = process.time(sigma)
    return z - sigma * predicts_noise(process.alpha(t).float() * z, t)


z = images.scaled([0]) + 0.5 * torch.randn(1, 1, 28, 28, generator=torch.Generator().manual_seed(0))
print(f"deviation {(denoiser(z, 0.5) - network(z, 0.5)).abs().max():.5f}")

# %%
# Files, modules and diffusers folders: :doc:`/howto/network`.
