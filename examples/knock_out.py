"""
Knock-out
=========

What would this sample be without the images that made it? ``d.without(ids)`` is the same denoiser as if they
had never been there, and a sample belongs to its seed, so the two can be laid side by side.

The picture: the same seed, sampled again and again; each time the training image that had the largest share
in the last answer is left out as well.
"""

# %%

import torch

import fpmc
from fpmc.report.grid import image_grid

images = fpmc.load_images("fashion").subset(slice(3000))


def knocked_out(denoiser, seed, rounds=7):
    """The sample, then the sample without its largest contributor, and so on."""
    samples, gone = [], []
    for _ in range(rounds):
        left = denoiser.without(gone) if gone else denoiser
        samples.append(fpmc.sample(left, seeds=[seed]).images)
        gone.append(int(left.attribute(samples[-1], 0.14, top=1).ids[0, 0]))
    return torch.cat(samples)


rows = {}
for denoiser in (fpmc.presets.optimal(images), fpmc.presets.pspc_square(images), fpmc.presets.pspc_flex(images)):
    rows[denoiser.name] = knocked_out(denoiser, seed=5)
    moved = (rows[denoiser.name][1:] - rows[denoiser.name][:1]).square().mean((1, 2, 3)).sqrt()
    print(f"{denoiser.name:12} moved by", *(f"{distance:.3f}" for distance in moved))

image_grid(rows, columns=[str(count) for count in range(7)], corner="left out")

# %%
# The optimal denoiser answers with one training image; without it, with the next. PSPC-Square draws on many
# images, a few pixels of each: without its largest contributor the sample hardly moves.

change = {name: (row[1] - row[0]).square().mean().sqrt().item() for name, row in rows.items()}
assert change["PSPC-Square"] < change["Optimal"]
