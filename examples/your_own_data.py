"""
Your own data
=============

A folder of pictures is a training set. There is nothing to train: a denoiser is there at once.

The picture: some of 600 pictures drawn for this page, and samples of three denoisers made of them.
"""

# %%
# Make a folder of small colour pictures; yours may be photographs. PNG, JPEG, BMP and WebP are read, as are EDM
# zips, ``.npy`` and ``.npz``.

import random
from pathlib import Path

from PIL import Image, ImageDraw

import fpmc
from fpmc.report.grid import image_grid

random.seed(0)
folder = Path("runs/shapes")
folder.mkdir(parents=True, exist_ok=True)
for number in range(600):
    page = Image.new("RGB", (20, 20), random.choice(["#1d3557", "#264653", "#2b2d42"]))
    draw, (x, y), reach = ImageDraw.Draw(page), (random.randint(6, 13), random.randint(6, 13)), random.randint(3, 5)
    shape = random.choice([draw.ellipse, draw.rectangle])
    colour = random.choice(["#e63946", "#f4a261", "#e9c46a", "#a8dadc"])
    shape((x - reach, y - reach, x + reach, y + reach), fill=colour)
    page.save(folder / f"{number:04}.png")

images = fpmc.load_images(folder)
print(images)

# %%
# Patch sizes for other resolutions are scaled from the paper's tables; ``fpmc calibrate`` finds those for your
# data.

rows = {"images": images.scaled(range(8))}
for denoiser in (fpmc.presets.optimal(images), fpmc.presets.wiener(images), fpmc.presets.pspc_square(images)):
    rows[denoiser.name] = fpmc.sample(denoiser, seeds=range(8)).images

image_grid(rows)

# %%
# One file instead of 600, in EDM's format. On the command line that is ``fpmc data pack runs/shapes
# runs/shapes.zip``, then ``fpmc sample --data runs/shapes.zip --denoiser pspc_square --seeds 0-7``.

path = fpmc.data.pack(images, "runs/shapes.zip")
print(fpmc.load_images(path), f"{path.stat().st_size:,} bytes")
assert fpmc.load_images(path).checksum() == images.checksum()

# %%
# Larger pictures are cropped and resized on the way (``--crop square --resize 64``); more in
# :doc:`/howto/data`.
