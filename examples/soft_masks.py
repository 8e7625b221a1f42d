"""
Soft masks
==========

Nothing in the equation asks for a q of zeros and ones. Fine-tuning starts at a binary method and learns log q
and log r by gradient, so that the denoiser comes nearer to a network (Sections 4.1 and 4.2).

The picture: q and r of one estimator before, and after a few steps against the DDPM++ that comes with the
package.
"""

# %%
# Each noise level is learned on its own; here it is one, with few images and few steps. In training, the images
# of the batch are left out of the source: otherwise the best answer would be to find them there.

import torch

import fpmc
from fpmc.report.grid import image_grid

sigma, everything = 5.32, fpmc.load_images("fashion")
images = everything.subset(slice(400))
network = fpmc.load_network("fashion-ddpmpp")
hard = fpmc.presets.pspc_square(images)


def tell(now):
    if now.validation is not None:
        print(f"step {now.step:3}: error to the network on held-out images {now.validation:.4f}")


soft = fpmc.finetune(
    hard, network, images, sigmas=[sigma], steps=48, batch=32, validate_every=8, validation=40, progress=tell
)

middle = 3 * 8 + 3                                          # of 8×8 squares of 21×21 pixels, the one in the middle
rows = {}
for name in ("q", "r"):
    before, after = (getattr(d.at(sigma).groups[0], name).dense()[middle] for d in (hard, soft))
    rows[name] = 1.6 * torch.stack([before, after / after.max()]) - 0.6

image_grid(rows, columns=["before", "after"], cell=168)

# %%
# Do images that neither has seen agree?

x = fpmc.load_images("fashion", split="test").scaled(range(32))
z = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
target = network(z, sigma)
errors = {d.name: (d(z, sigma) - target).square().mean().item() for d in (hard, soft)}
print(errors)
assert errors[soft.name] < errors[hard.name]

# %%
# After so few steps q is still rough. The paper takes 2,000 steps of 256 images at every level; ``fpmc finetune``
# resumes and draws curves. A learned denoiser is saved like any other, without its images:

soft.save_pretrained("runs/soft")
again = fpmc.FPMC.from_pretrained("runs/soft", images=images)
assert torch.equal(again(z, sigma), soft(z, sigma))
