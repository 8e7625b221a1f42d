"""Augmented sets: made when read, exact in a union, left out with their originals."""

from __future__ import annotations

import math
import tracemalloc

import pytest
import torch

from fpmc import presets, reference
from fpmc.augmentation import KINDS, MOVES, Augmented, augment, moved, normal, register
from fpmc.core.collection import Collection
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.precision import Squares
from fpmc.core.response import SameAsQ, pixel
from fpmc.core.sources import Source
from fpmc.data import load_images, pack, store
from fpmc.engine import Settings
from fpmc.engine.kernels import layout
from fpmc.errors import InputError
from fpmc.images import ImageSet

GEOMETRIC = ("translate", "rotate", "scale")


@pytest.fixture(scope="module")
def images() -> ImageSet:
    fashion = load_images("fashion").subset(slice(60))
    return ImageSet(fashion.pixels[:, :, 9:18, 9:17], fashion.labels, torch.arange(60) * 7, "fashion")


@pytest.mark.parametrize(("kind", "axis"), [("xflip", 3), ("yflip", 2)])
def test_reflections(images, kind, axis):
    made = augment(images, kind)
    assert torch.equal(made.read(slice(10, 20)), images.pixels[10:20].flip(axis))
    assert torch.equal(made.pixels, images.pixels.flip(axis))


@pytest.mark.parametrize(
    ("kind", "there", "from_"),
    [("up", (2, 3), (3, 3)), ("down", (2, 3), (1, 3)), ("left", (2, 3), (2, 4)), ("right", (2, 3), (2, 2))],
)
def test_moves_by_one_pixel_repeat_the_border(images, kind, there, from_):
    made = augment(images, kind).pixels
    assert torch.equal(made[..., there[0], there[1]], images.pixels[..., from_[0], from_[1]])
    axis, first = (2, kind == "down") if kind in ("up", "down") else (3, kind == "right")
    border = slice(0, 2) if first else slice(-2, None)
    two = made.movedim(axis, 0)[border]
    assert torch.equal(two[0], two[1])


def test_turns_are_rotations_by_four_degrees(images):
    angle = torch.full((60,), math.radians(4), dtype=torch.float64)
    for kind, sign in (("anticlockwise", 1), ("clockwise", -1)):
        assert torch.equal(augment(images, kind).pixels, KINDS["rotate"].transform(images.pixels, sign * angle))


def test_moved_images_weigh_like_their_originals(images):
    log_weights = torch.linspace(-1, 1, 60)
    plain, weighted = moved(Source(images)), moved(Source(images, log_weights))
    assert len(plain) == 300
    assert plain.log_weights is None
    assert torch.equal(plain.ids, images.ids.repeat(5))
    by_copy = weighted.log_weights.view(5, 60).exp()
    torch.testing.assert_close(by_copy, (log_weights.double().softmax(0) / 5).expand(5, 60))
    assert [part.name for part in plain.parts] == ["fashion", *(f"fashion+{kind}" for kind in MOVES)]


@pytest.mark.parametrize("kind", ["xflip", "left", "clockwise", *GEOMETRIC])
@pytest.mark.parametrize("amount", [0.3, 1.0])
def test_an_augmented_set_is_an_image_set(images, kind, amount):
    made = augment(images, kind, amount)
    whole = ImageSet(made.read(slice(None)), made.labels, made.ids, made.name)
    assert len(made) == 60 * amount
    assert made.shape == images.shape
    assert made.name == f"fashion+{kind}"
    assert torch.equal(made.labels, images.labels[made.ids // 7])  # pyright: ignore[reportArgumentType]
    assert made.checksum() == whole.checksum()
    some = torch.tensor([3, 0, 11])
    assert torch.equal(made.subset(some).pixels, whole.subset(some).pixels)
    assert torch.equal(made.subset(some).ids, whole.subset(some).ids)
    assert torch.equal(made.scaled(some), whole.scaled(some))
    assert torch.equal(made.pixels, whole.pixels)


@pytest.mark.parametrize("kind", GEOMETRIC)
def test_any_slice_is_the_same_slice_of_the_whole(images, kind):
    made, whole = augment(images, kind, 3.5), augment(images, kind, 3.5).pixels
    mask = torch.arange(210) % 3 == 0
    for index in (slice(7), slice(50, 70), slice(170, None), slice(0, 210, 13), [5, 200, 5], mask):
        assert torch.equal(made.read(index), whole[index])
    assert len(made.read(slice(5, 5))) == 0
    assert "pixels" not in vars(made)                   # 156 of 210 so far
    with pytest.raises(InputError, match="210 is outside"):
        made.read([210])


def test_what_is_read_is_all_that_is_made():
    """A million images, of which ten are read: 3 KB and not 3 GB, and only their originals are looked at."""
    seen = []

    class Spy(ImageSet):
        def read(self, index):
            seen.append(index)
            return super().read(index)

    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    base = Spy(image)
    vars(base).update(pixels=image.expand(50_000, -1, -1, -1), ids=torch.arange(50_000))
    made = augment(base, "rotate", 20)
    tracemalloc.start()
    assert made.read(slice(777_777, 777_787)).shape == (10, 3, 32, 32)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert seen == [slice(27_777, 27_787)]
    assert len(made) == 1_000_000


def noisy(images: ImageSet, sigma: float) -> torch.Tensor:
    noise = torch.randn(3, *images.shape, generator=torch.Generator().manual_seed(3))
    return images.scaled(slice(3)) + sigma * noise


def oracle(z: torch.Tensor, sigma: float, collection: Collection, sources: list[ImageSet], log_weights=None):
    (group,) = collection.groups
    x = torch.cat([part.read(slice(None)) for part in sources]).double() / 127.5 - 1
    return reference.denoise(z, sigma, group.q.dense(), group.r.dense(), x, log_weights)


@pytest.mark.parametrize(
    ("backend", "kind", "amount"),
    [("numba", "xflip", 1.0), ("numba", "yflip", 0.5), ("numba", "rotate", 2.3), ("torch", "xflip", 1.0)],
)
def test_a_union_equals_the_oracle_on_the_concatenated_arrays(images, backend, kind, amount):
    made = augment(images, kind, amount)
    source, parts = Source(images) | made, [images, made]
    weights = torch.randn(len(source), generator=torch.Generator().manual_seed(1)).double()
    gone = torch.isin(source.ids, torch.tensor([0, 7, 21, 77]))
    assert int(gone.sum()) > 4
    squares = Squares(5, 9, 8, inside=True)
    settings = Settings(backend=backend)
    for sigma in (0.1, 0.8, 5.0):
        z = noisy(images, sigma)
        for given, log_weights in [
            (source, None),
            (Source([images, made], weights), weights),
            (source.without([0, 7, 21, 77]), torch.zeros(len(source)).double().masked_fill(gone, -torch.inf)),
            (Source(images, weights[:60]) | made, _union_weights(weights[:60], len(made))),
        ]:
            for q, r in ((squares, SameAsQ(squares)), (Squares(3, 9, 8, inside=False), pixel(9, 8))):
                collection = Collection(q, r, given)
                answer = collection.denoise(z, sigma, settings)
                truth = oracle(z, sigma, collection, parts, log_weights)
                assert torch.allclose(answer.double(), truth, atol=2e-4)
    assert "pixels" not in vars(made) or kind == "rotate"       # reflections take no memory


def _union_weights(weights: torch.Tensor, copies: int) -> torch.Tensor:
    """A weighted set and a uniform one: each has the mass of its size."""
    return torch.cat([weights.softmax(0).log() + torch.tensor(60.0).log(), torch.zeros(copies).double()])


def test_leaving_an_image_out_takes_its_copies_along(images):
    source = Source(images) | augment(images, "xflip") | augment(images, "rotate", 3)
    left = source.without([7])
    assert int(left.log_weights.isinf().sum()) == 5  # pyright: ignore[reportOptionalMemberAccess]
    z, sigma = noisy(images, 0.05), 0.05
    assert float((presets.optimal(source)(z, sigma)[1] - images.scaled([1])[0]).abs().max()) < 1e-4
    assert float((presets.optimal(left)(z, sigma)[1] - images.scaled([1])[0]).abs().max()) > 0.1


def test_stretches_of_a_set_too_large_to_keep_give_the_same(images, monkeypatch):
    source = Source(images) | augment(images, "scale", 4)
    z, denoiser = noisy(images, 0.8), presets.pspc_square(source, schedule=5).using(backend="numba")
    kept = denoiser(z, 0.8)
    monkeypatch.setattr(layout.Layout, "within", lambda memory, images, block: layout.Layout(images, 1000, 40 * 9 * 8))
    denoiser = presets.pspc_square(source, schedule=5).using(backend="numba")
    assert torch.allclose(denoiser(z, 0.8), kept, atol=1e-5)


def test_a_gaussian_is_fitted_to_the_union(images):
    made = augment(images, "rotate", 1.5)
    both = ImageSet(torch.cat([images.pixels, made.read(slice(None))]))
    assert torch.allclose(fit_gaussian(Source(images) | made).covariance(), fit_gaussian(Source(both)).covariance())


def test_a_source_tells_what_it_is_made_of(images):
    source = Source(images) | augment(images, "xflip") | augment(images, "rotate", 0.5)
    told = "Source(150 images of 60 originals, uniform: 60 fashion | 60 fashion+xflip | 30 fashion+rotate)"
    assert repr(source) == told
    weighted = Source(source.parts, torch.cat([torch.full((60,), 3.0).log(), torch.zeros(90)]))
    assert "weighted: 60 fashion with 66.7 % of the mass | 60 fashion+xflip with 22.2 %" in repr(weighted)


def test_augmentations_can_be_chained(images):
    both = augment(augment(images, "xflip"), "yflip")
    assert torch.equal(both.pixels, images.pixels.flip(2, 3))
    assert torch.equal(both.ids, images.ids)


def test_what_is_stored_is_made_once(images, tmp_path, monkeypatch):
    monkeypatch.setenv("FPMC_HOME", str(tmp_path))
    monkeypatch.setattr(store, "LARGE", 1000)
    whole = augment(images, "rotate", 2).pixels
    assert torch.equal(augment(images, "rotate", 2).stored().pixels, whole)
    assert len(list((tmp_path / "decoded").iterdir())) == 1

    def never(*_):
        raise AssertionError("made again")

    monkeypatch.setattr(Augmented, "_make", never)
    again = augment(images, "rotate", 2).stored()
    assert torch.equal(again.pixels, whole)
    monkeypatch.undo()
    assert torch.equal(again.read(slice(5, 9)), whole[5:9])
    assert again.stored() is again


@pytest.mark.parametrize("room", [True, False])
def test_a_set_that_is_read_again_is_stored_if_there_is_room(images, tmp_path, monkeypatch, room):
    monkeypatch.setenv("FPMC_HOME", str(tmp_path))
    monkeypatch.setattr(store, "LARGE", 1000)
    if not room:
        (tmp_path / "decoded").write_text("no folder can be made here")
    made, whole = augment(images, "scale"), augment(images, "scale").pixels
    for half in (slice(30), slice(30, 60)):
        assert torch.equal(made.read(half), whole[half])
    assert "pixels" not in vars(made)
    for half in (slice(30), slice(30, 60)):
        assert torch.equal(made.read(half), whole[half])
    assert ("pixels" in vars(made)) is room


def test_an_edm_zip_of_augmented_images(images, tmp_path):
    made = augment(images, "translate", 1.5)
    back = load_images(pack(made, tmp_path / "made.zip"))
    assert "pixels" not in vars(made)
    assert torch.equal(back.pixels, made.pixels)
    assert torch.equal(back.labels, made.labels)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def _own_kinds():
    before = dict(KINDS)
    yield
    KINDS.clear()
    KINDS.update(before)


@pytest.mark.usefixtures("_own_kinds")
def test_three_lines_make_an_augmentation(images):
    @register("negative")
    def negative(pixels):
        return 255 - pixels

    made = augment(images, "negative", 0.5)
    assert torch.equal(made.pixels, 255 - images.pixels[made.ids // 7])
    with pytest.raises(InputError, match="at most 1"):
        augment(images, "negative", 2)


@pytest.mark.usefixtures("_own_kinds")
def test_an_augmentation_of_ones_own_with_parameters(images):
    @register("brighter", normal)
    def brighter(pixels, by):
        return (pixels + 20 * by.view(-1, 1, 1, 1)).round().clamp(0, 255).byte()

    made = augment(images, "brighter", 3)
    expected = images.pixels[made.ids // 7] + 20 * made.parameters.view(-1, 1, 1, 1)  # pyright: ignore
    assert torch.equal(made.read(slice(100, 120)), expected[100:120].round().clamp(0, 255).byte())
    for changeable in (made, augment(made, "rotate")):
        with pytest.raises(InputError, match=r"'fashion\+brighter.*may change under its name"):
            changeable.stored()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.usefixtures("_own_kinds")
@pytest.mark.parametrize("wrong", [lambda x: x.float(), lambda x: x[:, :, 1:], lambda x: x.numpy()])
def test_an_augmentation_that_answers_something_else(images, wrong):
    register("wrong")(wrong)
    with pytest.raises(InputError, match="'wrong' must turn uint8"):
        augment(images, "wrong").read(slice(3))


@pytest.mark.parametrize("name", ["xflip", "synthetic", ""])
def test_names_that_are_taken(name):
    with pytest.raises(InputError, match="name of your own"):
        register(name)


def test_bad_input(images):
    with pytest.raises(InputError, match=r"no augmentation 'x-flip'; did you mean 'xflip'"):
        augment(images, "x-flip")
    with pytest.raises(InputError, match=r"no augmentation 'blur'; there are xflip.*synthetic"):
        augment(images, "blur")
    with pytest.raises(InputError, match="ImageSet, got Source"):
        augment(Source(images), "xflip")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="'rotate' takes no angle"):
        augment(images, "rotate", angle=3)
