"""Images stay on the device between calls, within a bound, and go when nobody has them any more."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from devices.elsewhere import Elsewhere
from devices.test_devices import SIGMA, blobs, noisy, same
from fpmc import FPMC, ImageSet, InputError, Source, presets
from fpmc.engine import Settings
from fpmc.engine.kernels import resident
from fpmc.engine.kernels.resident import nbytes

THERE, OTHER = torch.device("privateuseone", 0), torch.device("meta")
BYTES = 3 * 8 * 8                                       # of an image


class Sent(TorchDispatchMode):
    """Counts bytes of images and masks that go from the CPU to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        away = torch.device(kwargs.get("device") or "cpu").type != "cpu"
        if func is torch.ops.aten._to_copy.default and away and not isinstance(args[0], Elsewhere):
            self.bytes += args[0].nbytes if args[0].dtype in (torch.uint8, torch.bool) and args[0].ndim == 4 else 0
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def _nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "BLOCK", 10 * BYTES)
    resident._held.clear()


def sent(work: Callable[[], object]) -> int:
    with Sent() as counter:
        work()
    return counter.bytes


def read(images: ImageSet, limit: int, device: torch.device = THERE, size: int = 7) -> torch.Tensor:
    like = torch.empty(0, device=device)
    return torch.cat([chunk.pixels for chunk in resident.chunks(Source(images), size, 0, len(images), like, limit)])


METHODS: dict[str, Callable[[ImageSet], FPMC]] = {
    "optimal": presets.optimal,
    "direct": lambda images: presets.optimal(images).using(kernels=("direct",), chunk=7),
    "ls": lambda images: presets.ls(images, schedule=3),
    "els": lambda images: presets.els(images, schedule=3),
    "pspc_square": lambda images: presets.pspc_square(images, schedule=4),
    "pspc_flex": lambda images: presets.pspc_flex(images, maps="wiener", schedule=0.2),
    "lukoianov": lambda images: presets.lukoianov(images, tau=0.05),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_second_call_sends_no_image(name: str, device: str) -> None:
    images = blobs(3)
    d = METHODS[name](images)
    z = noisy(d).to(device)
    assert sent(lambda: d(z, SIGMA)) >= images.pixels.nbytes
    assert sent(lambda: d(z, SIGMA)) == 0
    assert sent(lambda: d(z[:1], SIGMA)) == 0           # nor with other chunks
    same(d(z, SIGMA), d(z.cpu(), SIGMA))
    nothing = d.using(resident=0)
    nothing(z, SIGMA)                                   # with what is still there
    assert nbytes(THERE) == 0
    assert sent(lambda: nothing(z, SIGMA)) >= images.pixels.nbytes


def test_on_the_cpu_nothing_is_kept() -> None:
    d = presets.ls(blobs(3), schedule=3).using(backend="torch")
    d(noisy(d), SIGMA)
    assert not resident._held


@pytest.mark.parametrize("size", [1, 7, 10, 64])
def test_any_stretch_is_put_together_from_blocks(size: int, device: str) -> None:
    images = blobs(3, 33)
    assert torch.equal(read(images, 1 << 20, size=size).cpu(), images.pixels)


def test_a_set_that_does_not_fit_is_kept_in_part(device: str) -> None:
    images, limit = blobs(3, 40), 25 * BYTES
    for _ in range(3):
        assert torch.equal(read(images, limit).cpu(), images.pixels)
        assert nbytes(THERE) == 20 * BYTES
    assert sent(lambda: read(images, limit)) == 20 * BYTES


def test_what_was_used_least_recently_makes_room(device: str) -> None:
    first, second, third = (blobs(3, count) for count in (10, 10, 20))
    for images in (first, second, first, third):
        read(images, 30 * BYTES)
        assert nbytes(THERE) <= 30 * BYTES
    assert sent(lambda: read(third, 30 * BYTES)) == 0
    assert sent(lambda: read(first, 30 * BYTES)) == 0
    assert sent(lambda: read(second, 30 * BYTES)) == 10 * BYTES


def test_a_lower_bound_is_kept_at_once(device: str) -> None:
    images, other = blobs(3, 20), blobs(3, 10)
    read(other, 1 << 20)
    read(images, 1 << 20)
    read(images, 10 * BYTES)
    assert nbytes(THERE) == 10 * BYTES
    read(images, 0)
    assert nbytes(THERE) == 0


def test_what_nobody_has_any_more_goes(device: str) -> None:
    images = blobs(3)
    d = presets.pspc_flex(images, maps="wiener", schedule=0.2)
    d(noisy(d).to(device), SIGMA)
    assert nbytes(THERE) > images.pixels.nbytes         # masks, too
    del images, d
    gc.collect()
    assert nbytes(THERE) == 0


def test_a_set_is_on_one_device_at_a_time(device: str) -> None:
    images = blobs(3)
    read(images, 1 << 20)
    read(images, 1 << 20, OTHER)
    assert (nbytes(THERE), nbytes(OTHER)) == (0, images.pixels.nbytes)


@pytest.mark.parametrize("wrong", [-1, 1.5, "4GB"])
def test_impossible_bounds(wrong: Any) -> None:
    with pytest.raises(InputError, match="resident"):
        Settings(resident=wrong)
