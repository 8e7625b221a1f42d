"""Pictures: every pixel where it belongs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fpmc.errors import InputError
from fpmc.report.grid import image_grid, stack, to_picture


def find(page: np.ndarray, colour: tuple[int, int, int]) -> tuple[slice, slice]:
    """The bounding box of a colour that occurs nowhere else."""
    rows, columns = np.nonzero((page == colour).all(-1))
    return slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1)


def test_same_seed_same_column_and_pixels_untouched():
    """Four flat colour images: rows share their top, columns their left edge, and each is a solid enlarged block."""
    colours = np.array([[(200, 10, 10), (10, 200, 10)], [(10, 10, 200), (200, 200, 10)]])
    images = torch.from_numpy((colours - 127.5) / 127.5)[..., None, None].expand(2, 2, 3, 4, 4)
    rows = {"a": images[0], "b": images[1]}
    page = np.asarray(image_grid(rows, columns=["0", "1"], corner="seed", title="T", cell=40))
    boxes = {(i, j): find(page, tuple(colours[i, j])) for i in range(2) for j in range(2)}
    for (i, j), (rows, columns) in boxes.items():
        assert (page[rows, columns] == colours[i, j]).all()
        assert (rows.stop - rows.start, columns.stop - columns.start) == (40, 40)
        assert rows.start == boxes[i, 0][0].start
        assert columns.start == boxes[0, j][1].start
    assert boxes[0, 0][0].stop <= boxes[1, 0][0].start
    assert boxes[0, 0][1].stop <= boxes[0, 1][1].start


def test_clipping_and_rounding():
    image = torch.tensor([-3, -1, 0, 0.999, 1, 3]).reshape(1, 1, 6)
    assert np.asarray(to_picture(image)).tolist() == [[0, 0, 128, 255, 255, 255]]
    every = torch.arange(256)
    assert np.asarray(to_picture(((every - 127.5) / 127.5).reshape(1, 16, 16))).ravel().tolist() == every.tolist()


def test_labels_are_drawn_and_fit():
    images = torch.ones(1, 1, 4, 4)
    short, long = (np.asarray(image_grid({label: images})) for label in ("σ", "a much longer label"))
    assert long.shape[1] > short.shape[1] + 50
    for page in (short, long):
        assert page.min() < 100, "no ink"
        assert (page[:, [0, -1]] == 255).all(), "ink at the edge"
    titled = np.asarray(image_grid({"x": images}, title="a title that is much wider than one small image"))
    assert (titled[:, -1] == 255).all()


def test_rows_may_be_shorter_and_pages_stack():
    page = image_grid({"0": torch.zeros(3, 1, 4, 4), "3": torch.zeros(1, 1, 4, 4)})
    both = stack([page, page])
    assert both.size == (page.width, 2 * page.height)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: image_grid({}),
        lambda: image_grid({"a": torch.zeros(1, 2, 4, 4)}),
        lambda: image_grid({"a": torch.zeros(1, 1, 4, 4), "b": torch.zeros(1, 3, 4, 4)}),
        lambda: image_grid({"a": torch.zeros(2, 1, 4, 4)}, columns=["0"]),
    ],
)
def test_impossible_grids_are_refused(wrong):
    with pytest.raises(InputError):
        wrong()
