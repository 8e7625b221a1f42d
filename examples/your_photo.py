"""
Denoise your photo
==================

A denoiser needs images that look like the clean one. A photo brings them along: what it shows once it shows
again, elsewhere and smaller. Here a noisy photo is denoised with nothing but itself; no network, no training,
no other data.

The picture: the photo, the same with noise, and denoised by the Wiener filter and by PSPC-Square of its own
tiles.
"""

# %%
# Any picture will do; put the name of yours here. This one comes with matplotlib (Grace Hopper, US Navy, public
# domain).

import numpy as np
import torch
from matplotlib.cbook import get_sample_data
from PIL import Image
from torch.nn.functional import avg_pool2d, fold

import fpmc
from fpmc.report.grid import image_grid

with get_sample_data("grace_hopper.jpg") as file:
    photo = Image.open(file).convert("RGB").crop((100, 20, 420, 340)).resize((160, 160), Image.Resampling.LANCZOS)
x = torch.from_numpy(np.array(photo)).permute(2, 0, 1)[None] / 127.5 - 1            # (1, 3, 160, 160)
sigma = 0.3
z = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))

# %%
# The training images are all tiles of the noisy photo at half its size: the mean of four pixels has half the
# noise. The tiles to denoise overlap, and their answers are averaged.

side, step = 12, 4


def tiles(page, step):                                      # (1, 3, H, W) -> (n, 3, side, side)
    return page.unfold(2, side, step).unfold(3, side, step).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)


pixels = ((tiles(avg_pool2d(z, 2), 1) + 1) * 127.5).round().clamp(0, 255).byte()
images = fpmc.ImageSet(pixels, name="tiles")
source = fpmc.Source(images) | fpmc.augment(images, "xflip")
print(source)


def denoise(d):
    columns = d(tiles(z, step), sigma).flatten(1).T[None]
    whole = {"output_size": z.shape[2:], "kernel_size": side, "stride": step}
    return fold(columns, **whole) / fold(torch.ones_like(columns), **whole)


def decibels(page):                                         # peak signal to noise ratio
    return float(10 * torch.log10(4 / (page - x).square().mean()))


made = [x, z, denoise(fpmc.presets.wiener(source)), denoise(fpmc.presets.pspc_square(source, schedule=3))]
noisy, linear, best = map(decibels, made[1:])
columns = ["photo", f"{noisy:.1f} dB", f"Wiener {linear:.1f} dB", f"PSPC-Square {best:.1f} dB"]
image_grid({"": torch.cat(made)}, columns=columns, cell=320)

# %%
# The Wiener filter leaves noise wherever it keeps edges; patches choose place by place. With more photos of the
# same kind add their tiles to the source; that is worth more than anything one could do with the noisy one.

assert best > linear > noisy + 5

# %%
# If the noise level is not known, it can be estimated, and ``fpmc denoise noisy.png --data folder`` does all of
# this for images as large as those in the folder: it estimates the noise and fits a multi-scale collection to
# it.

from fpmc.core.gaussian import fit_gaussian  # noqa: E402
from fpmc.methods.wiener import estimate_sigma  # noqa: E402

garments, test = fpmc.load_images("fashion"), fpmc.load_images("fashion", split="test")
shirt = test.scaled([7])
noisy_shirt = shirt + 0.5 * torch.randn(shirt.shape, generator=torch.Generator().manual_seed(0))
found = float(estimate_sigma(fit_gaussian(fpmc.Source(garments)), noisy_shirt)[0])
print(f"σ is 0.5, estimated {found:.2f}")
assert abs(found - 0.5) < 0.05
