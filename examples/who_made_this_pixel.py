"""
Who made this pixel?
====================

Every value of an analytic answer is a weighted sum over training images, with weights that add up to 1. So
one can ask who made a pixel, and the answer is exact: no gradient, no retraining, no approximation.

The picture: a noisy image, what PSPC-Square makes of it, and the eight training images with the largest share
in the pixel within the cross. Below: the eight that made most of the whole image, and where each of them
speaks.
"""

# %%

import torch

import fpmc
from fpmc.report.grid import image_grid, stack

images = fpmc.load_images("fashion").subset(slice(6000))
d = fpmc.presets.pspc_square(images)
x = fpmc.load_images("fashion", split="test").scaled([7])
sigma, pixel = 0.585, (8, 12)
z = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
x0 = d(z, sigma)
a = d.attribute(z, sigma, top=8, pixel=pixel)
print("ids   ", a.ids[0].tolist())
print("shares", *(f"{share:.3f}" for share in a.weights[0]), f"and {a.rest[0]:.3f} for all others")
print(f"as if {a.effective[0]:.1f} images spoke")

# %%
# The shares of all images add up to 1. ``d.attribute(z, sigma)`` without a pixel is about the whole image;
# ``mask=`` about a part.

assert torch.isclose(a.weights.sum() + a.rest[0], torch.tensor(1.0), atol=1e-5)


def crossed(image):                                         # a cross around the pixel
    shown, (y, column) = image.clone(), pixel
    for step in (2, 3):
        shown[..., y - step, column] = shown[..., y + step, column] = 1
        shown[..., y, column - step] = shown[..., y, column + step] = 1
    return shown


whole = d.attribute(z, sigma, top=8)                        # the same for the whole image, to see where each speaks
where = whole.maps[0, :, None] / whole.maps[0].amax((1, 2))[:, None, None, None]
first = torch.cat([crossed(z[0])[None], crossed(x0[0])[None]])
made = image_grid({"pixel": torch.cat([first, images.scaled(a.ids[0].tolist())])},
                  columns=["z", "answer", *(f"{share:.0%}" for share in a.weights[0])])
spoke = image_grid({"whole image": images.scaled(whole.ids[0].tolist()), "where": 2 * where - 1},
                   columns=[f"{share:.1%}" for share in whole.weights[0]])
stack([made, spoke])

# %%
# ``fpmc explore`` is the same in a browser, for every pixel, noise level and method: see
# :doc:`/howto/attribution`.
