"""V: weights, unions, subsets, leave-outs, translations, Gaussians."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fpmc.core.gaussian import Gaussian
from fpmc.core.precision import Full, Precision, Squares
from fpmc.core.response import Partition, Response, SameAsQ, pixel
from fpmc.core.sources import Source, Translations, as_source, scale
from fpmc.errors import InputError
from fpmc.images import ImageSet


def images(count: int, first: int = 0, shape: tuple[int, int, int] = (1, 2, 3), ids: Tensor | None = None) -> ImageSet:
    """Images told apart by their grey level: image i is all i + first."""
    values = torch.arange(first, first + count, dtype=torch.uint8)
    return ImageSet(values.view(-1, 1, 1, 1).expand(-1, *shape).contiguous(), ids=ids, name=f"from {first}")


def masses(source: Source) -> dict[int, float]:
    """{grey level: ν} of what the chunks bring, over all of the source."""
    found: dict[int, float] = {}
    for pixels, log_weights, _ in source.chunks(3):
        weights = torch.full((len(pixels),), 1 / len(source)) if log_weights is None else log_weights.exp()
        for level, weight in zip(pixels[:, 0, 0, 0].tolist(), weights.tolist()):
            found[level] = found.get(level, 0.0) + weight
    return {level: weight for level, weight in found.items() if weight > 0}


def test_a_source_is_uniform_unless_told() -> None:
    source = Source(images(5))
    assert (len(source), source.shape, source.log_weights) == (5, (1, 2, 3), None)
    assert masses(source) == pytest.approx(dict.fromkeys(range(5), 1 / 5))


def test_weights_are_normalised() -> None:
    source = Source(images(3), torch.tensor([0.0, math.log(2), math.log(5)]) + 100)
    assert source.log_weights is not None
    assert source.log_weights.dtype == torch.float64
    assert masses(source) == pytest.approx({0: 1 / 8, 1: 2 / 8, 2: 5 / 8}, rel=1e-5)


def test_minus_infinity_is_no_weight() -> None:
    assert masses(Source(images(3), torch.tensor([0.0, -torch.inf, 0.0]))) == pytest.approx({0: 0.5, 2: 0.5})


def test_a_union_of_uniform_sources_is_uniform() -> None:
    union = Source(images(2)) | images(6, first=10) | Source(images(1, first=50))
    assert union.log_weights is None
    assert len(union) == 9
    assert masses(union) == pytest.approx(dict.fromkeys((0, 1, *range(10, 16), 50), 1 / 9))


def test_a_union_with_weights_shares_by_size() -> None:
    weighted = Source(images(2), torch.tensor([0.0, math.log(3)], dtype=torch.float64))
    for union in (weighted | images(6, first=10), Source(images(6, first=10)) | weighted):
        assert masses(union) == pytest.approx({0: 0.25 / 4, 1: 0.75 / 4} | dict.fromkeys(range(10, 16), 1 / 8))


def test_leaving_out_and_joining_may_change_places() -> None:
    first, second = Source(images(4)), images(4, first=10, ids=torch.arange(10, 14))
    assert masses(first.without([0, 1]) | second) == pytest.approx(masses((first | second).without([0, 1])))


def test_a_union_copies_nothing() -> None:
    first, second = images(3), images(2, first=7)
    union = Source(first) | second
    assert [part.pixels.data_ptr() for part in union.parts] == [first.pixels.data_ptr(), second.pixels.data_ptr()]


def test_leaving_out_an_id_leaves_out_its_copies() -> None:
    flipped = images(4, first=100, ids=torch.tensor([0, 1, 2, 3]))
    source = (Source(images(4)) | flipped).without([1, 3, 77])
    assert masses(source) == pytest.approx(dict.fromkeys((0, 2, 100, 102), 1 / 4))
    assert masses(source.without(torch.tensor([0]))) == pytest.approx({2: 1 / 2, 102: 1 / 2})


def test_leaving_out_keeps_the_weights_of_the_others() -> None:
    weighted = Source(images(3), torch.tensor([1.0, 2.0, 5.0]).log())
    assert masses(weighted.without([1])) == pytest.approx({0: 1 / 6, 2: 5 / 6}, rel=1e-6)


def test_leaving_out_nothing_changes_nothing() -> None:
    source = Source(images(4))
    assert source.without([8, 9]) is source
    assert source.without([]) is source


def test_something_must_be_left() -> None:
    with pytest.raises(InputError, match="leaves nothing"):
        Source(images(3)).without(range(3))
    with pytest.raises(InputError, match="weight"):
        Source(images(3)).without([0]).without([1, 2])


@given(data=st.data(), weighted=st.booleans())
def test_a_subset_keeps_images_ids_and_weights_together(data: st.DataObject, weighted: bool) -> None:
    union = Source(images(4, ids=torch.arange(4) + 40)) | images(3, first=10) | images(2, first=20)
    weights = torch.arange(1, 10, dtype=torch.float64)
    source = Source(union.parts, weights.log()) if weighted else union
    index = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=9, unique=True))
    levels = [[0, 1, 2, 3, 10, 11, 12, 20, 21][i] for i in index]
    subset = source.subset(torch.tensor(index))
    total = float(weights[index].sum()) if weighted else len(index)
    expected = {level: (float(weights[i]) if weighted else 1) / total for level, i in zip(levels, index)}
    assert masses(subset) == pytest.approx(expected)
    by_level = dict(zip((int(p[0, 0, 0]) for part in subset.parts for p in part.pixels), subset.ids.tolist()))
    assert by_level == {level: int(source.ids[i]) for level, i in zip(levels, index)}


@pytest.mark.parametrize("index", [[-1], [9], [0.5], [True, False] * 4 + [True], [[0]]])
def test_impossible_subsets(index: list) -> None:
    with pytest.raises(InputError, match="index"):
        (Source(images(4)) | images(5, first=10)).subset(torch.tensor(index))


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4), chunk=st.integers(1, 9))
def test_chunks_bring_every_image_once(sizes: list[int], chunk: int) -> None:
    source = Source([images(size, first=10 * i) for i, size in enumerate(sizes)])
    chunks = list(source.chunks(chunk))
    assert all(len(pixels) <= chunk and weights is None for pixels, weights, _ in chunks)
    assert torch.equal(torch.cat([each.pixels for each in chunks]), torch.cat([part.pixels for part in source.parts]))
    assert [each.first for each in chunks] == np.cumsum([0, *(len(each.pixels) for each in chunks)])[:-1].tolist()


@given(count=st.integers(1, 12), first=st.integers(0, 12), last=st.integers(0, 12), chunk=st.integers(1, 5))
def test_chunks_of_a_stretch(count: int, first: int, last: int, chunk: int) -> None:
    source = Source(images(count)) | images(7, first=20)
    last = min(last, len(source))
    found = [each.pixels for each in source.chunks(chunk, first, last)]
    whole = torch.cat([part.pixels for part in source.parts])[first:last]
    assert torch.equal(torch.cat(found) if found else whole[:0], whole)


def test_chunks_without_weight_are_passed_over() -> None:
    source = (Source(images(6)) | images(6, first=10)).without(range(3))
    chunks = list(source.chunks(3))
    assert [pixels[0, 0, 0, 0].item() for pixels, _, _ in chunks] == [3, 13]
    assert all(weights is not None and len(weights) == 3 for _, weights, _ in chunks)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.zeros(4), r"must be \(3,\)"),
        (torch.zeros(3, 1), r"got \(3, 1\)"),
        (torch.tensor([0.0, torch.nan, 0.0]), "NaN"),
        (torch.tensor([0.0, torch.inf, 0.0]), "inf"),
        (torch.full((3,), -torch.inf), "all weights of the source are 0"),
    ],
)
def test_impossible_weights(weights: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Source(images(3), weights)


def test_images_of_a_source_have_one_shape() -> None:
    with pytest.raises(InputError, match=r"\(1, 2, 3\).*\(1, 3, 2\)"):
        Source(images(3)) | images(3, shape=(1, 3, 2))
    with pytest.raises(InputError, match="none"):
        Source([])
    with pytest.raises(InputError, match="ImageSet"):
        Source(torch.zeros(3, 1, 2, 2, dtype=torch.uint8))  # pyright: ignore[reportArgumentType]


def test_as_source() -> None:
    source = Source(images(3))
    assert as_source(source) is source
    assert as_source(images(3)).ids.tolist() == [0, 1, 2]
    assert len(as_source(torch.zeros(4, 1, 2, 2, dtype=torch.uint8))) == 4
    with pytest.raises(InputError, match="got list"):
        as_source([1, 2])  # pyright: ignore[reportArgumentType]


def test_bytes_become_the_nearest_floats_of_their_level() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    exact = (levels.double() - 127.5) / 127.5
    assert torch.equal(scale(levels, torch.float32), exact.float())
    assert torch.equal(scale(levels, torch.float64), exact)
    assert torch.equal(scale(levels, torch.float32), ImageSet(levels.view(256, 1, 1, 1)).scaled().flatten())


def test_a_name_says_what_is_inside() -> None:
    source = Source(images(3)) | images(4, first=10)
    assert "7 images" in repr(source)
    assert "uniform" in repr(source)
    assert "weighted" in repr(source.without([0]))


# Translations


def brute_translations(base: ImageSet, size: int, y: int, x: int) -> dict[tuple[int, int], int]:
    """{(row, column) of the patch centre: number of images} that output pixel (y, x) may look at."""
    _, height, width = base.shape
    k = size // 2
    rows = range(k, height - k) if k <= y <= height - k - 1 else [y]
    columns = range(k, width - k) if k <= x <= width - k - 1 else [x]
    return {(row, column): len(base) for row in rows for column in columns}


@pytest.mark.parametrize("size", [1, 3, 5, 7, 9])
@pytest.mark.parametrize(("height", "width"), [(5, 5), (4, 7), (6, 3)])
def test_translations_bring_the_right_patches_under_each_pixel(size: int, height: int, width: int) -> None:
    place = torch.arange(height * width, dtype=torch.uint8).view(1, 1, height, width)
    base = ImageSet(torch.cat([place + 1, place + 101]))                       # each pixel names its own place
    translations = Translations(Source(base), size)
    assert translations.shape == (1, height, width)
    for estimator in range(height * width):
        y, x = divmod(estimator, width)
        source = translations.at(estimator)
        expected = brute_translations(base, size, y, x)
        assert len(source) == 2 * len(expected)
        centres = torch.cat([part.pixels[:, 0, y, x] for part in source.parts]).tolist()
        names = [int(place[0, 0, row, column]) + first for row, column in expected for first in (1, 101)]
        assert sorted(centres) == sorted(names)
        assert sum(masses_of(source)) == pytest.approx(1)


def masses_of(source: Source) -> list[float]:
    assert source.log_weights is not None
    return source.log_weights.exp().tolist()


def test_translations_keep_ids_and_weights() -> None:
    weighted = Source(images(2, shape=(1, 3, 3), ids=torch.tensor([8, 9])), torch.tensor([1.0, 3.0]).log())
    source = Translations(weighted, 1).at(4)
    assert source.ids.tolist() == [8, 9] * 9
    assert masses_of(source) == pytest.approx([1 / 36, 3 / 36] * 9, rel=1e-6)


def test_a_gaussian_is_its_eigendecomposition() -> None:
    root = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values, vectors = torch.linalg.eigh(root @ root.T)
    gaussian = Gaussian(torch.zeros(1, 2, 3, dtype=torch.float64), values, vectors)
    assert gaussian.shape == (1, 2, 3)
    torch.testing.assert_close(gaussian.covariance(), root @ root.T)


def test_images_are_read_by_their_place_in_the_union() -> None:
    parts = [ImageSet(torch.full((n, 1, 2, 3), n, dtype=torch.uint8) + torch.arange(n).byte()[:, None, None, None])
             for n in (2, 5, 1)]
    source = Source(parts)
    whole = torch.cat([part.pixels for part in parts])
    for index in ([0], [7, 0, 3, 3, 6, 1], [2, 6]):
        assert torch.equal(source.read(torch.tensor(index)), whole[index])


def test_without_weights_all_are_equal_in_float64() -> None:
    source = Source(ImageSet(torch.zeros(7, 1, 2, 2, dtype=torch.uint8)))
    weights = source.without([3]).log_weights
    assert weights is not None
    assert weights.dtype == torch.float64
    assert weights[3] == -torch.inf
    torch.testing.assert_close(weights[weights > -torch.inf].exp(), torch.full((6,), 1 / 6, dtype=torch.float64))


def test_translations_of_changed_images() -> None:
    base = Source(ImageSet(torch.zeros(7, 1, 4, 4, dtype=torch.uint8)))
    left = base.without([3])
    changed = Translations(base, 3).changed(lambda source: left)
    assert changed.base is left
    assert changed.size == 3


@pytest.mark.parametrize(
    ("q", "r"),
    [
        (Full(4, 4), SameAsQ(Full(4, 4))),
        (Squares(3, 4, 4, inside=True), SameAsQ(Squares(3, 4, 4, inside=True))),
        (Squares(5, 4, 4), pixel(4, 4)),
        (Squares(3, 4, 4, around=0.1), pixel(4, 4)),
        (Squares(3, 4, 4), SameAsQ(Squares(3, 4, 4))),
        (Squares(3, 4, 4), Partition(torch.arange(16).flip(0).view(1, 4, 4), 16)),
    ],
    ids=str,
)
def test_translations_go_with_centred_squares_of_their_size(q: Precision, r: Response) -> None:
    translations = Translations(Source(ImageSet(torch.zeros(7, 1, 4, 4, dtype=torch.uint8))), 3)
    translations.check(Squares(3, 4, 4), pixel(4, 4))
    with pytest.raises(InputError, match="translations go with centred squares"):
        translations.check(q, r)
