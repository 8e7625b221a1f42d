"""Images in lanes: what is kept, what is read ahead of the kernels, and that nobody can tell from the answers."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fpmc import presets
from fpmc.core.fpmc import FPMC
from fpmc.core.sources import Source
from fpmc.engine import Call, Settings
from fpmc.engine.kernels import layout
from fpmc.engine.kernels.fused import Fused
from fpmc.engine.kernels.layout import Layout, ahead, pixels_of, stretches
from fpmc.engine.reduce import Mass
from fpmc.errors import InputError
from fpmc.images import ImageSet, Index

TIGHT = 1 << 20                                         # bytes: less than the images below have


class Counted(ImageSet):
    """Images that tell how often they are read, and by which threads; some of them cannot be."""

    reads: list[tuple[int, int]]
    by: set[threading.Thread]
    broken: int | None

    def __init__(self, pixels: torch.Tensor, broken: int | None = None) -> None:
        super().__init__(pixels)
        self.__dict__.update(reads=[], by=set(), broken=broken)

    def read(self, index: Index) -> torch.Tensor:
        assert isinstance(index, slice)
        self.reads.append((index.start, index.stop))
        self.by.add(threading.current_thread())
        if self.broken is not None and index.start <= self.broken < index.stop:
            raise InputError(f"image {self.broken} cannot be read")
        return super().read(index)

    @property
    def images_read(self) -> int:
        return sum(stop - start for start, stop in self.reads)


def pixels(count: int, shape=(3, 12, 12), seed: int = 0) -> torch.Tensor:
    return torch.randint(256, (count, *shape), generator=torch.Generator().manual_seed(seed)).byte()


def asleep() -> bool:
    """No thread reads any more."""
    return not any(thread.name.startswith("ahead") for thread in threading.enumerate())


@pytest.fixture
def source() -> Source:
    """Of 1.3 MiB, in two sets and with weights, one of them 0."""
    weights = torch.rand(3200, generator=torch.Generator().manual_seed(2)).double().log()
    weights[77] = -torch.inf
    return Source((ImageSet(pixels(1001)), ImageSet(pixels(2199, seed=1))), weights)


def noisy(sigma: float, count: int = 3) -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    return ImageSet(pixels(count)).scaled() + sigma * torch.randn(count, 3, 12, 12, generator=random)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("name", ["optimal", "ls", "pspc_square", "lukoianov"])
def test_memory_does_not_matter(source: Source, name: str, sigma: float) -> None:
    schedule = {"ls": {"schedule": 5}, "pspc_square": {"schedule": 5}}.get(name, {})
    denoiser: FPMC = getattr(presets, name)(source, **schedule).using(backend="numba", threads=2)
    z, tight = noisy(sigma), denoiser.using(memory=TIGHT)
    step = tight.at(sigma).plan(Call(sigma, len(z)), tight.settings).steps[0]
    assert step.memory <= TIGHT
    assert "read ahead" in str(step)
    assert "read ahead" not in denoiser.explain(sigma)
    torch.testing.assert_close(tight(z, sigma), denoiser(z, sigma), atol=2e-6, rtol=0)
    for one, other in zip(tight.attribute(z, sigma, 4).weights, denoiser.attribute(z, sigma, 4).weights):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_memory_does_not_matter_to_translations_nor_to_reductions(source: Source) -> None:
    z = noisy(0.5, 1)
    for denoiser in (presets.els(source, schedule=3), presets.els(source, schedule=9), presets.ls(source, schedule=5)):
        answers = [denoiser.using(backend="numba", memory=memory)(z, 0.5) for memory in (TIGHT, 1 << 30)]
        torch.testing.assert_close(*answers, atol=2e-6, rtol=0)
    collection = presets.ls(source, schedule=5).at(0.5)
    found = [collection.reduce(Mass(), z, 0.5, Settings(backend="numba", memory=memory)) for memory in (TIGHT, 1 << 30)]
    torch.testing.assert_close(*found, atol=2e-6, rtol=1e-5)


@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    ends=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    keep=st.integers(0, 3000), size=st.integers(0, 1500), weighted=st.booleans(),
)
def test_every_image_is_in_one_stretch(lengths, ends, keep: int, size: int, weighted: bool) -> None:
    shape, count = (1, 4, 5), sum(lengths)
    given = torch.arange(count).double() if weighted else None
    source = Source([ImageSet(pixels(n, shape, n)) for n in lengths], given)
    begin, end = sorted(min(each, count) for each in ends)
    places = set()
    at = begin
    for part in stretches(source, begin, end, keep, size):
        assert part.first + part.begin == at
        at = part.first + part.end
        index = torch.arange(part.first + part.begin, at)
        assert torch.equal(pixels_of(part, shape), source.read(index))
        told = torch.from_numpy(part.stretch.log_weights)
        want = torch.zeros(len(index)) if source.log_weights is None else source.log_weights[index].float()
        assert torch.equal(told[part.begin : part.end], want)
        others = torch.cat([told[: part.begin], told[part.end :]])
        assert bool((others < -1e29).all())
        kept = [blocks for _, blocks in layout._blocks.values() if part.stretch.blocks.base is blocks]
        if not kept:
            places.add(part.stretch.blocks.ctypes.data)
    assert at == end
    assert len(places) <= 2
    assert asleep()


def test_what_is_kept_is_read_once_and_the_rest_once_a_pass() -> None:
    images = Counted(pixels(3200))
    denoiser = presets.pspc_square(images, schedule=5).using(backend="numba")
    z, tight = noisy(1.0), denoiser.using(memory=TIGHT)
    step = tight.at(1.0).plan(Call(1.0, len(z)), tight.settings).steps[0]
    assert isinstance(step, Fused)
    assert step.respond == "mixed"
    kept = step.layout.keep // (16 * 432) * 16          # whole blocks
    assert 0 < kept < 3200
    tight(z, 1.0)
    assert images.images_read == kept + 2 * (3200 - kept)
    assert max(stop - start for start, stop in images.reads if start >= kept) * 432 <= step.layout.stretch
    tight(z, 1.0)
    assert images.images_read == kept + 4 * (3200 - kept)
    assert threading.current_thread() not in images.by
    images.reads.clear()
    denoiser(z, 1.0)
    assert images.images_read == 3200                   # for both passes
    denoiser(z, 1.0)
    assert images.images_read == 3200                   # and for all calls


def test_one_stretch_is_made_while_another_is_at_work() -> None:
    made, at_work = [], 0
    two = threading.Event()

    def items():
        for number in range(6):
            assert len(made) <= at_work + 1
            made.append(number)
            if number == 1:
                two.set()
            yield number

    for number in ahead(items()):
        at_work = number + 1
        assert two.wait(10)                             # the second is made before the first is done with
        assert len(made) <= number + 2
    assert made == list(range(6))
    assert asleep()


@pytest.mark.parametrize("broken", [0, 1500, 3199])
def test_an_error_of_reading_is_raised(broken: int) -> None:
    denoiser = presets.ls(Counted(pixels(3200), broken), schedule=5).using(backend="numba", memory=TIGHT)
    with pytest.raises(InputError, match=f"image {broken} cannot be read"):
        denoiser(noisy(1.0), 1.0)
    assert asleep()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_reading_stops_when_work_does(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    images, calls = Counted(pixels(3200)), []

    def share(*_: object) -> None:
        calls.append(len(images.reads))
        if len(calls) == 2:
            raise error

    monkeypatch.setattr("fpmc.engine.kernels.fused.share", share)
    denoiser = presets.ls(images, schedule=5).using(backend="numba", memory=TIGHT)
    with pytest.raises(error) as caught:
        denoiser(noisy(1.0), 1.0)
    assert asleep()                                     # although the traceback holds on to all frames
    assert caught.value is not None
    assert images.images_read < 3200


def test_a_closed_reader_stops() -> None:
    every = stretches(Source(ImageSet(pixels(400))), 0, 400, 0, 20_000)
    next(every)
    assert not asleep()
    every.close()
    assert asleep()


@given(memory=st.integers(-100, 1 << 31), images=st.integers(1, 1 << 32), block=st.integers(16, 1 << 20))
def test_a_layout_keeps_to_its_memory(memory: int, images: int, block: int) -> None:
    found = Layout.within(memory, images, block)
    assert found.memory <= max(memory, 2 * block)
    assert (found.stretch == 0) == (images <= memory)
    assert found.keep == images if images <= memory else block <= found.stretch <= max(block, layout.STRETCH)
