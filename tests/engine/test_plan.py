"""The plan decides: kernels, chunks, numerics. It reads no image and can be printed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.problems import close, truth
from fpmc import Collection, Group, ImageSet, InputError, presets
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.precision import Full, Precision, Precisions, Squares
from fpmc.core.response import Partition, Responses, SameAsQ, pixel
from fpmc.core.sources import Source, Translations
from fpmc.engine import Call, Plan, Settings, cost, make_plan
from fpmc.engine.kernels.attention import Attention
from fpmc.engine.kernels.offer import Offer
from fpmc.engine.kernels.streaming import Expanded
from fpmc.engine.plan import EXACT, rewrite
from fpmc.engine.reduce import Mean

CHANNELS, HEIGHT, WIDTH = 3, 8, 8
TORCH = Settings(backend="torch")


def images(count: int = 50, side: int = HEIGHT) -> ImageSet:
    random = torch.Generator().manual_seed(1)
    return ImageSet(torch.randint(256, (count, CHANNELS, side, side), generator=random).byte())


def masks(length: int, channels: int = 1, share: float = 0.1) -> Precisions:
    drawn = torch.rand(length, channels, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(2))
    return Precisions(drawn < share)


def same(q: Precision, source=None) -> Group:
    return Group(q, SameAsQ(q), source or Source(images()))


def soft(q: Precision) -> Group:
    return Group(q, Responses(torch.rand(len(q), 1, HEIGHT, WIDTH)), Source(images()))


def step(group: Group, sigma: float = 0.3, settings: Settings = TORCH, **call) -> Offer:
    (only,) = make_plan([group], Call(sigma, **call), settings).steps
    return only


FULL = Full(HEIGHT, WIDTH)
CENTRED = Squares(3, HEIGHT, WIDTH)
INSIDE = Squares(3, HEIGHT, WIDTH, inside=True)
ALL_OF_ONE = Partition(torch.zeros(1, HEIGHT, WIDTH, dtype=torch.long), 20)


@pytest.mark.parametrize(
    ("group", "kernel", "respond"),
    [
        (same(FULL), "direct", "means"),
        (Group(CENTRED, pixel(HEIGHT, WIDTH), Source(images())), "direct", "owned"),
        (same(INSIDE), "direct", "mixed"),
        (soft(INSIDE), "direct", "mixed"),
        (Group(masks(20), ALL_OF_ONE, Source(images())), "direct", "owned"),
        (same(masks(20)), "matrix", "mixed"),
        (same(masks(20, CHANNELS)), "matrix", "mixed"),
        (same(masks(5)), "direct", "means"),            # few estimators: their whole means are kept, one pass
        (Group(CENTRED, pixel(HEIGHT, WIDTH), Translations(Source(images()), 3)), "shifts", "owned"),
        (same(FULL, fit_gaussian(Source(images()))), "affine", "means"),
    ],
)
def test_the_structure_chooses_the_kernel(group: Group, kernel: str, respond: str) -> None:
    chosen = step(group)
    assert (chosen.kernel, chosen.respond, chosen.backend) == (kernel, respond, "torch")
    assert chosen.estimators == len(group)
    assert chosen.work > 0
    assert chosen.memory > 0


def test_box_sums_do_not_cost_more_for_larger_patches() -> None:
    squares = [Group(Squares(s, HEIGHT, WIDTH), pixel(HEIGHT, WIDTH), Source(images())) for s in (3, 7)]
    for settings in (TORCH, Settings()):
        small, large = (step(group, settings=settings) for group in squares)
        assert small.work == large.work
    dense = step(replace(squares[0], q=Precisions(squares[0].q.dense() * 0.5)))
    assert large.seconds < dense.seconds


@pytest.mark.parametrize(
    "call",
    [
        {"dtype": torch.float64},
        {"device": "cuda"},
        {"gradients": True},
    ],
)
def test_fused_kernels_are_for_plain_float32_on_the_cpu(call: dict) -> None:
    for group in (same(FULL), same(INSIDE), same(masks(20))):
        assert step(group, settings=Settings(backend="numba")).backend == "numba"
        assert step(group, settings=Settings()).backend == "numba"
        assert step(group, settings=Settings(), **call).backend == "torch"


def test_dense_rows_are_a_matrix_product_even_beside_fused_kernels() -> None:
    def chosen(side: int, values: Callable[[torch.Tensor], torch.Tensor]) -> tuple[str, str]:
        drawn = torch.rand(side**2, 1, side, side, generator=torch.Generator().manual_seed(2))
        found = step(same(Precisions(values(drawn)), Source(images(1000, side))), 3.0, Settings(), batch=8)
        return found.kernel, found.backend

    assert chosen(24, lambda drawn: drawn < 0.1) == ("rows", "numba")
    assert chosen(24, lambda drawn: drawn < 0.9) == ("rows", "numba")           # by what they lack
    assert chosen(24, lambda drawn: drawn + 0.1) == ("rows", "numba")           # four at a time
    assert chosen(48, lambda drawn: drawn + 0.1) == ("matrix", "torch")


def test_a_few_rows_go_through_fused_kernels_however_dense() -> None:
    """A matrix product of one row would write out all squared differences first."""
    one = Precisions(torch.rand(1, 1, HEIGHT, WIDTH) + 0.5)
    owner = Partition(torch.zeros(1, HEIGHT, WIDTH, dtype=torch.long), 1)
    for group in (same(one), Group(one, owner, Source(images()))):
        chosen = step(group, settings=Settings())
        assert (chosen.kernel, chosen.backend) == ("rows", "numba")


def test_what_may_be_passed_over_is_less_than_the_tolerance() -> None:
    """N images that far below the largest hold a share N·exp(−cut) of a posterior at most."""
    squares = Group(CENTRED, pixel(HEIGHT, WIDTH), Source(images()))
    moved = Group(CENTRED, pixel(HEIGHT, WIDTH), Translations(Source(images()), 3))
    for group, members in [(squares, 50), (same(INSIDE), 50), (moved, 50 * 6 * 6)]:
        for tolerance in (1e-7, 1e-3):
            chosen = step(group, settings=Settings(tolerance=tolerance))
            assert members * math.exp(-chosen.cut) <= tolerance * (1 + 1e-9)
        assert step(group, settings=Settings(exact=True)).cut == math.inf


# Numerics: the expanded form ‖z‖² − 2z·x + ‖x‖²


def test_small_noise_needs_direct_differences() -> None:
    def expanded(sigma: float, **call) -> bool:
        return step(same(FULL, Source(images(5000))), sigma=sigma, batch=8, **call).kernel == "expanded"

    assert not expanded(0.002)
    assert not expanded(0.06)
    assert expanded(0.06, dtype=torch.float64)
    assert not expanded(1e-8, dtype=torch.float64)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("side", [2, 4, 8])
def test_where_the_expanded_form_is_allowed_it_is_good_enough(side: int) -> None:
    """At the smallest σ that gets it: copies a few grey levels apart, so that every nat shows."""
    base = images(1, side).pixels.int()
    random = torch.Generator().manual_seed(3)
    copies = (base + torch.randint(-40, 41, (60, *base.shape[1:]), generator=random)).clip(0, 255).byte()
    collection = presets.optimal(ImageSet(copies)).at(1.0)
    levels = [0.002 * 1.2**i for i in range(60)]
    allowed = Settings(backend="torch", kernels=("direct", "expanded"))
    offered = {sigma: tuple(Expanded.offers(collection.groups, Call(sigma), allowed, Mean())) for sigma in levels}
    expanded = [sigma for sigma, (offer,) in offered.items() if offer.error <= EXACT]
    assert expanded == levels[-len(expanded) :]         # from some σ on
    z = ImageSet(copies[:8]).scaled()
    z = z + expanded[0] * torch.randn(z.shape, generator=random)
    settings = Settings(backend="torch", kernels=("expanded",))
    close(collection.denoise(z, expanded[0], settings), truth(collection, z, expanded[0]), 1e-4)


def test_in_float64_the_expanded_form_is_exact_for_any_noise() -> None:
    def chosen(sigma: float, **call) -> str:
        return step(same(FULL, Source(images(5000))), sigma=sigma, batch=8, **call).kernel

    assert {chosen(sigma) for sigma in (0.002, 0.06, 0.3)} == {"double"}
    assert chosen(0.002, far=20) == "direct"            # z is so far away that float64 loses what float32 has
    assert chosen(0.3, device="mps") == "direct"


@pytest.mark.parametrize("size", [5, 8])
def test_a_square_as_large_as_the_image_is_the_whole_image(size: int) -> None:
    square = Squares(5, 5, 5, inside=True) if size == 5 else Squares(17, 8, 8)
    whole = step(same(square, Source(images(50, size))))
    assert (whole.estimators, type(whole)) == (1, type(step(same(Full(size, size), Source(images(50, size))))))


# A device has costs of its own


def test_a_gpu_is_planned_for_by_predicted_costs() -> None:
    here, there = (step(same(INSIDE), device=device, batch=8) for device in ("cpu", "cuda"))
    assert there.threads == 1                           # those of this machine do nothing there
    assert there.seconds < here.seconds / 20
    assert "about" in str(here)
    assert "on an A100, predicted and not measured" in str(there)
    assert not cost.of("cuda").measured
    assert cost.of("cpu").measured
    assert cost.of("elsewhere") is cost.of("cuda")


def test_every_torch_kernel_can_be_planned_for_a_gpu() -> None:
    groups = [same(FULL), same(INSIDE), same(masks(20)), soft(CENTRED), same(FULL, fit_gaussian(Source(images()))),
              Group(CENTRED, pixel(HEIGHT, WIDTH), Translations(Source(images()), 3))]
    plan = make_plan(groups, Call(0.3, device="cuda"))
    assert 0 < plan.seconds < make_plan(groups, Call(0.3), TORCH).seconds


# Memory


@pytest.mark.parametrize("group", [same(FULL), soft(INSIDE), same(masks(20)), soft(CENTRED)])
def test_chunks_fit_in_memory(group: Group) -> None:
    for memory in (1 << 20, 1 << 24, 1 << 30):
        for batch in (1, 64):
            chosen = step(group, settings=Settings(backend="torch", memory=memory), batch=batch)
            assert 1 <= chosen.chunk <= 50
            assert chosen.memory <= memory or chosen.chunk == 1
            assert chosen.chunk == 50 or chosen.memory * (1 + 1 / chosen.chunk) > memory    # no less than fits


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "group", [same(INSIDE, Source(images(500))), Group(CENTRED, pixel(HEIGHT, WIDTH), Source(images(500)))]
)
def test_heads_of_attention_fit_in_memory(group: Group, device: str) -> None:
    found = []
    for memory in (1 << 20, 1 << 21, 1 << 30):
        only = Settings(kernels=("attention",), memory=memory)
        chosen = step(group, settings=only, batch=64, device=device)
        assert isinstance(chosen, Attention)
        assert chosen.memory <= memory
        found.append(chosen.heads)
    assert found[0] < found[1] < found[2] == len(group)
    crowd = replace(group, source=Source([images()] * 1000))
    with pytest.raises(InputError, match="no kernel offers"):                  # not even one estimator at a time
        step(crowd, settings=Settings(kernels=("attention",), memory=1 << 20))


def test_attention_is_for_large_batches_of_small_patches_with_some_noise() -> None:
    def chosen(size: int, sigma: float, batch: int, **call) -> str:
        q = Squares(size, 32, 32)
        return step(Group(q, pixel(32, 32), Source(images(5000, 32))), sigma, batch=batch, device="cuda", **call).kernel

    assert chosen(3, 0.3, 64) == "attention"
    assert chosen(3, 0.3, 1) == "direct"
    assert chosen(3, 0.2, 64) == "direct"               # products in float32 would be off by more than is allowed
    assert chosen(3, 0.3, 64, far=3) == "direct"
    assert chosen(15, 3.26, 8) == "direct"
    assert chosen(3, 0.3, 64, dtype=torch.float64) == "direct"
    assert chosen(3, 0.3, 64, gradients=True) == "direct"


def test_a_larger_batch_takes_fewer_images_at_a_time() -> None:
    little = Settings(backend="torch", memory=1 << 20)
    chunks = [step(soft(INSIDE), settings=little, batch=b).chunk for b in (1, 32, 512)]
    assert chunks == sorted(chunks, reverse=True)
    assert chunks[0] > chunks[2]


def test_a_chunk_may_be_asked_for() -> None:
    assert step(same(FULL), settings=Settings(backend="torch", chunk=7)).chunk == 7


def test_threads_may_be_asked_for() -> None:
    assert step(same(FULL), settings=Settings(threads=3)).threads == 3
    assert step(same(FULL), settings=Settings()).threads == torch.get_num_threads()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": 1000}, "memory 1000 bytes"),
        ({"chunk": 0}, "chunk 0"),
        ({"threads": 0}, "threads 0"),
        ({"backend": "jax"}, "backend 'jax'"),
        ({"tolerance": 0.0}, "tolerance 0.0"),
        ({"tolerance": 1.0}, "tolerance 1.0"),
    ],
)
def test_impossible_settings(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(**settings)


# Plans are plain data


def test_planning_reads_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [same(FULL), same(INSIDE), same(masks(20)), soft(CENTRED)]

    def read(*_: object) -> Tensor:
        raise AssertionError("a plan is made without looking at the images")

    monkeypatch.setattr(Source, "chunks", read)
    monkeypatch.setattr(ImageSet, "read", read)
    first, second = (make_plan(groups, Call(0.3, batch=4)) for _ in range(2))
    assert first == second
    assert isinstance(first, Plan)


def test_a_plan_says_what_it_does_and_why() -> None:
    text = str(make_plan([same(FULL), same(INSIDE)], Call(0.3, batch=4), TORCH))
    for words in ("sigma 0.3, batch 4", "group 0: double", "group 1: attention", "36 estimators", "50 images", "MiB"):
        assert words in text


def test_a_collection_says_what_was_merged() -> None:
    twice = Precisions(masks(10).values.repeat(2, 1, 1, 1))
    plan = Collection.of(same(twice), same(FULL)).plan(Call(0.3))
    assert [(each.estimators, each.merged) for each in plan.steps] == [(10, 20), (1, 1)]
    assert "10 estimators (merged from 20)" in str(plan)


def test_squares_of_several_sizes_are_evaluated_together() -> None:
    source, other = Source(images()), Source(images(20))
    sizes = [Squares(size, HEIGHT, WIDTH, inside=True, stride=stride) for size, stride in ((2, 1), (5, 2))]
    uneven = torch.rand(CHANNELS, 1, 1) + 0.1           # a weight of its own for each channel
    groups = [
        same(sizes[0], source),
        same(FULL, source),
        same(sizes[1], source).weighted(torch.rand(1, HEIGHT, WIDTH) + 0.1),
        same(sizes[0], other),
        same(sizes[1], source).weighted(uneven),
    ]
    plan = make_plan(groups, Call(0.3), Settings(backend="numba"))
    assert [step.groups for step in plan.steps] == [(0, 2), (1,), (3,), (4,)]
    assert plan.steps[0].estimators == len(sizes[0]) + len(sizes[1])
    assert "groups 0, 2: boxes, mixed, numba: 58 estimators of 2 sizes" in str(plan)
    assert all(len(step.groups) == 1 for step in make_plan(groups, Call(0.3), TORCH).steps)


def test_entries_are_left_out_only_where_rounding_is_larger_anyway() -> None:
    """At most `nats` on a logit: entries up to nats · 2σ² / reach², and none in float64 or under gradients."""
    sigma, settings = 3.0, Settings()
    budget = 2.0 ** math.floor(math.log2(settings.nats * 2 * sigma**2 / Call(sigma).reach ** 2))
    values = torch.ones(2, 1, 4, 4)
    values[:, 0, 0, 0], values[:, 0, 1, 1] = 0.9 * budget, 1.2 * budget
    images = ImageSet(torch.randint(0, 256, (5, 1, 4, 4), dtype=torch.uint8))
    values[1, 0, 3, 3] = 0.5                            # or they would be merged
    group = Collection(values, torch.rand(2, 1, 4, 4) + 0.1, images).groups[0]
    left = rewrite(group, Call(sigma), settings).q.dense()
    assert left[:, 0, 0, 0].tolist() == [0, 0]
    assert torch.equal(left[:, 0, 1, 1], values[:, 0, 1, 1])
    for call in (Call(sigma, dtype=torch.float64), Call(sigma, gradients=True)):
        assert torch.equal(rewrite(group, call, settings).q.dense(), values)
    assert torch.equal(rewrite(group, Call(sigma), Settings(exact=True)).q.dense(), values)
