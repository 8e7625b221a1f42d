"""Synthetic images: samples of a network from seeds of their own, kept and continued."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fpmc import presets
from fpmc.augmentation import augment
from fpmc.augmentation.synthetic import ROOM, Kept
from fpmc.core.sources import Source
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.sampling import initial_noise, sample


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FPMC_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def images() -> ImageSet:
    pixels = torch.randint(0, 256, (20, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ImageSet(pixels, name="some")


class Network(nn.Module):
    """The denoiser of N(mean, 0.5²), which counts its calls and can fail."""

    shape = (1, 4, 4)

    def __init__(self, mean: float = 0.1) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(mean), requires_grad=False)
        self.calls, self.fails_at = 0, None

    def forward(self, z, sigma):
        self.calls += 1
        if self.calls == self.fails_at:
            raise KeyboardInterrupt
        return self.mean + (z - self.mean) * 0.25 / (0.25 + sigma**2)


def test_they_are_heun_samples_of_the_reserved_seeds(images):
    network = Network()
    made = augment(images, "synthetic", 0.5, network=network)
    truth = sample(network, seeds=range(2**31, 2**31 + 10), steps=18)
    assert torch.equal(made.pixels, ((truth.images + 1) * 127.5).round().clamp(0, 255).byte())
    assert truth.nfe == 35
    assert made.ids.tolist() == list(truth.seeds)
    assert made.labels is None
    assert made.name == "some+synthetic"


def test_their_noise_is_never_that_of_evaluation():
    """Torch's generator sees 32 bits of a seed: 2**32 + 5 is 5 again, but no reserved seed is below 2**31."""
    assert torch.equal(initial_noise([5], (1, 2, 2)), initial_noise([5 + 2**32], (1, 2, 2)))
    for seed in (0, 1, 1023):
        seeds = Kept("", (1, 2, 2), seed, 18).seeds(0, ROOM)
        assert 2**31 <= seeds.start < seeds.stop <= 2**32
    with pytest.raises(InputError, match="from 0 to 1023"):
        Kept("", (1, 2, 2), 1024, 18)


def test_what_is_kept_is_not_sampled_again_and_a_larger_set_goes_on(images):
    network = Network()
    small = augment(images, "synthetic", 0.5, network=network)
    once = network.calls
    assert torch.equal(augment(images, "synthetic", 0.5, network=network).pixels, small.pixels)
    assert network.calls == once + 1                    # the question by which it is known
    large = augment(images, "synthetic", 2.0, network=network, batch=10)
    assert torch.equal(large.pixels[:10], small.pixels)
    assert network.calls == once + 2 + 3 * 35
    assert len(large.pixels.flatten(1).unique(dim=0)) == 40


def test_an_interruption_loses_one_batch(images):
    network = Network()
    network.fails_at = 1 + 2 * 35 + 20
    with pytest.raises(KeyboardInterrupt):
        augment(images, "synthetic", network=network, batch=4)
    network.calls, network.fails_at = 0, None
    made = augment(images, "synthetic", network=network, batch=4)
    assert network.calls == 1 + 3 * 35
    assert torch.equal(made.pixels, augment(images, "synthetic", network=Network(), steps=18).pixels)


def test_a_torn_file_is_mended(images, home):
    whole = augment(images, "synthetic", network=Network()).pixels.clone()
    (file,) = home.rglob("pixels.u8")
    file.write_bytes(file.read_bytes()[: 7 * 16 + 3])
    assert torch.equal(augment(images, "synthetic", network=Network()).pixels, whole)
    (count,) = home.rglob("count.txt")
    for text in ("many", "", "-5 0", "20", count.read_text()[:-1], "9" * 5000):
        count.write_text(text)
        assert torch.equal(augment(images, "synthetic", network=Network()).pixels, whole)


def test_flipped_bits_are_noticed_and_made_again(images, home):
    whole = augment(images, "synthetic", network=Network()).pixels.clone()
    (file,) = home.rglob("pixels.u8")
    content = bytearray(file.read_bytes())
    content[37] ^= 4
    file.write_bytes(content)
    assert torch.equal(augment(images, "synthetic", network=Network()).pixels, whole)


def test_other_weights_seeds_and_steps_are_other_images(images):
    first = augment(images, "synthetic", network=Network()).pixels
    for other in ({"network": Network(0.11)}, {"network": Network(), "seed": 1}, {"network": Network(), "steps": 6}):
        assert not torch.equal(augment(images, "synthetic", **other).pixels, first)


def test_any_denoiser_serves_as_a_network(images):
    made = augment(images, "synthetic", network=presets.wiener(images))
    source = Source(images) | made
    assert len(source.without(images.ids).parts) == 2
    assert repr(source).startswith("Source(40 images of 40 originals")
    with pytest.raises(InputError, match="leaves nothing"):
        source.without(source.ids)


def test_bad_input(images):
    with pytest.raises(InputError, match="need the network"):
        augment(images, "synthetic")
    with pytest.raises(InputError, match=r"shape \(1, 4, 4\), these are \(3, 4, 4\)"):
        augment(ImageSet(images.pixels.expand(-1, 3, -1, -1)), "synthetic", network=Network())
    with pytest.raises(InputError, match="batch must be at least 1"):
        augment(images, "synthetic", network=Network(), batch=0)
    with pytest.raises(InputError, match="no network 'nowhere'"):
        augment(images, "synthetic", network="nowhere")
    with pytest.raises(InputError, match="amount"):
        augment(images, "synthetic", 21, network=Network())
