"""
Many machines
=============

An answer is a sum over training images, and a sum can be cut anywhere: each process takes a part of the
images, and two numbers per estimator and value put the parts together. Samples belong to their seeds, so
those can be dealt out as well.

The picture: what two halves of the images answer to the same noisy image, how much weight each half has, and the
two put together: the answer of all images.
"""

# %%
# By hand, for the optimal denoiser: each half gives its mean and its log-mass; the whole is the mean of the
# means by mass.

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import fpmc
from fpmc.report.grid import image_grid

images = fpmc.load_images("fashion").subset(slice(2000))
x = fpmc.load_images("fashion", split="test").scaled([28])
sigma = 1.92
z = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))

halves = (images.subset(slice(1000)), images.subset(slice(1000, 2000)))
means = torch.cat([fpmc.presets.optimal(half)(z, sigma) for half in halves])
logits = [-(half.scaled() - z).double().square().flatten(1).sum(1) / (2 * sigma**2) for half in halves]
shares = torch.stack([logit.logsumexp(0) for logit in logits]).softmax(0).float()
merged = (shares[:, None, None, None] * means).sum(0, keepdim=True)
whole = fpmc.presets.optimal(images)(z, sigma)
print(f"deviation of the merged answer {(merged - whole).abs().max():.6f}")
assert torch.allclose(merged, whole, atol=1e-4)

columns = ["noisy", *(f"half, {share:.0%}" for share in shares), "merged", "whole"]
image_grid({"": torch.cat([z, means, merged, whole])}, columns=columns)

# %%
# The engine does so for every method: chunks, threads and processes are the same thing to it. With ``torchrun``
# a denoiser is split over the processes of this machine or of many, and called as before:

WORKER = """
import torch, torch.distributed as dist, fpmc
dist.init_process_group("gloo")
images = fpmc.load_images("fashion").subset(slice(2000))
d = fpmc.presets.pspc_square(images).sharded()
x0 = d(torch.load("runs/z.pt", weights_only=True), 1.92)
if dist.get_rank() == 0:
    torch.save(x0, "runs/x0.pt")
dist.destroy_process_group()
"""

if hasattr(fpmc.FPMC, "sharded"):
    Path("runs").mkdir(exist_ok=True)
    Path("runs/worker.py").write_text(WORKER)
    torch.save(z, "runs/z.pt")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launch, "runs/worker.py"], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    split = torch.load("runs/x0.pt", weights_only=True)
    deviation = (split - fpmc.presets.pspc_square(images)(z, sigma)).abs().max()
    print(f"deviation of two processes {deviation:.6f}")
    assert deviation < 1e-4

# %%
# Seeds need no more than two commands, here two processes at the same time; put together they are what one
# process makes.


def sample(seeds, outdir):
    settings = ["--max_size", "1000", "--steps", "6", "--seeds", seeds, "--outdir", outdir]
    return subprocess.Popen([sys.executable, "-m", "fpmc", "sample", *settings], stdout=subprocess.DEVNULL)


for process in [sample("0-3", "runs/first"), sample("4-7", "runs/second")]:
    assert process.wait() == 0
apart = torch.from_numpy(np.concatenate([np.load(f"runs/{name}/samples.npy") for name in ("first", "second")]))
together = fpmc.sample(fpmc.presets.pspc_square(images.subset(slice(1000))), seeds=range(8), steps=6).images
print(f"deviation {(apart - together).abs().max():.6f}")
assert torch.allclose(apart, together, atol=1e-4)

# %%
# Whole studies (``fpmc reproduce``, ``fpmc finetune`` over noise levels) are tasks with results in a shared cache;
# the same line typed on another machine works along. See :doc:`/howto/reproduce`.
