"""
Memorisation
============

The best possible denoiser of a training set gives the training set back. A collection of *local* denoisers,
made of the very same images, does not: it puts new pictures together (Section 2.1 of the paper).

The picture: samples of three denoisers from the same eight seeds, and below each row the training images
nearest to them.
"""

# %%
# The optimal denoiser is the posterior mean of the data, q = r = 1. PSPC-Square asks and answers patch by
# patch. Wiener knows only the mean and the covariance.

import fpmc
from fpmc.metrics import nearest
from fpmc.report.grid import image_grid

images = fpmc.load_images("fashion").subset(slice(3000))
rows = {}
for denoiser in (fpmc.presets.optimal(images), fpmc.presets.pspc_square(images), fpmc.presets.wiener(images)):
    samples = fpmc.sample(denoiser, seeds=range(8)).images
    found = nearest(samples, images)
    copies = int((found.distance < 1 / 127.5).sum())        # within one grey level
    print(f"{denoiser.name:12} {copies} of 8 are copies, distance to the nearest {found.distance.mean():.3f}")
    rows[denoiser.name] = samples
    rows["nearest" + " " * len(rows)] = images.scaled(found.index)

image_grid(rows, columns=[str(seed) for seed in range(8)], corner="seed")

# %%
# The distance is the root mean square over pixels, where black to white is 2. Every sample of the optimal
# denoiser *is* a training image: at little noise all weight goes to the nearest one, whatever one does at
# strong noise.

assert nearest(rows["Optimal"], images).distance.max() < 1 / 127.5
assert nearest(rows["PSPC-Square"], images).distance.min() > 10 / 127.5

# %%
# Networks generalise, so none of them can be near this optimum. What they do instead is the question of the
# paper, and the :doc:`next example <seven_choices>` has seven answers.
