"""Who made this pixel: the images with the largest share in an answer, exactly, and where each of them speaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.sources import Discrete, Source, Translations
from fpmc.engine.plan import Plan, make_plan
from fpmc.engine.reduce import Shares, Weights
from fpmc.engine.run import Alone, evaluate, find
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State
from fpmc.errors import InputError
from fpmc.images import ImageSet

AT_ONCE = 4                                             # noisy images whose top images are looked at together


@dataclass(frozen=True, eq=False)
class Attribution:
    """The images that made an answer D(z, σ)_j = Σ_n w_n(j) x_n(j), largest share first.

    An image's share is the mean of w_n(j) over the output values that were asked for; all shares sum up to 1.
    """

    index: Tensor                                       # int64 (B, top), into `images`; on the CPU, as they are
    ids: Tensor                                         # int64 (B, top), source ids; likewise
    weights: Tensor                                     # (B, top), share of the answer, descending
    effective: Tensor                                   # (B,), 1 / Σ share²: how many images speak
    gaussian: Tensor                                    # (B,), share of Gaussian sources
    weights_by_value: Tensor                            # (B, top, C, H, W), w_n(j)
    answers: Tensor                                     # (B, top, C, H, W), what each adds to the answer: w_n(j) x_n(j)
    gallery: tuple[ImageSet, ...]                       # the images of all sources, one set after the other
    mask: Tensor                                        # bool (H, W), the pixels that were asked for

    def __repr__(self) -> str:
        """The first noisy image's largest shares."""
        pairs = zip(self.ids[0].tolist(), self.weights[0].tolist())
        shares = ", ".join(f"{name}: {100 * share:.3g} %" for name, share in pairs)
        return f"Attribution of {len(self.ids)}, the first to images {shares or 'none'}; rest {100 * self.rest[0]:.3g}%"

    @property
    def rest(self) -> Tensor:
        """What is left for all other images and Gaussian sources, (B,)."""
        return 1 - self.weights.sum(1)

    @property
    def maps(self) -> Tensor:
        """Where each image speaks, (B, top, H, W): w_n(j), the mean over the channels."""
        return self.weights_by_value.mean(2)

    @cached_property
    def images(self) -> Source:
        """What `index` points into: the images of all sources, one set after the other."""
        return Source(self.gallery)

    def patches(self, images: ImageSet | None = None) -> Tensor:
        """What each image shows where it speaks, (B, top, C, h, w): cut to the box in which `mask` lies.

        images: those to show, by source id, if not those of the source; e.g. the originals of augmented copies.
        """
        if images is None:
            shown = self.images.read(self.index.flatten())
        else:
            place = {int(name): number for number, name in enumerate(images.ids)}
            missing = [int(name) for name in self.ids.flatten() if int(name) not in place]
            if missing:
                raise InputError(f"image id {missing[0]} is not among the {len(images)} images; give the source's own")
            shown = images.read(torch.tensor([place[int(name)] for name in self.ids.flatten()]))
        rows, columns = self.mask.any(1).nonzero(), self.mask.any(0).nonzero()
        shown = shown[..., int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1]
        return shown.unflatten(0, self.index.shape)


def attribute(
    groups: Sequence[Group], z: Tensor, sigma: float, total: Tensor, mask: Tensor, top: int, settings: Settings,
    team: Alone | None = None,
) -> Attribution:
    """The `top` images with the largest shares in the output values of `mask` (H, W) bool, for each z (B, C, H, W)."""
    plan = make_plan(groups, Call.of(z, sigma), settings, Shares(mask))
    shares = Shares(mask[None].expand(z.shape[1:]))
    team = team or Alone()
    spoken, gaussian = evaluate(plan, z, shares, total, team)
    gallery = Gallery(plan.groups)
    whole = z.new_zeros(len(z), len(gallery))
    for each in spoken:
        gallery.add(whole, each.members[0], each.sums)
    effective = 1 / team.sums([whole.square().sum(1)])[0]
    weights, index = largest(whole.masked_fill(~gallery.ours(team).to(z.device), -1), min(top, len(gallery)), team)
    index = index.cpu()                                 # where the images are
    states = {each.places: each.state for each in spoken}
    looked = [
        look(plan, gallery, part, chosen, total, settings, {k: _rows(s, first) for k, s in states.items()})
        for first, part, chosen in zip(
            range(0, len(z), AT_ONCE), z.split(AT_ONCE), index.split(AT_ONCE), strict=True
        )
    ]
    found = torch.cat(looked)
    return Attribution(
        index, gallery.ids[index], weights, effective, gaussian.to(z).expand(len(z)), found[:, :, 0], found[:, :, 1],
        tuple(gallery.sets), mask,
    )


def largest(shares: Tensor, count: int, team: Alone) -> tuple[Tensor, Tensor]:
    """The largest shares (B, count) of all members and whose they are; of equal ones the first come first.

    A member has the whole share of each of its images, so its own largest are all that others need to know.
    """
    def first(shares: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        shares, order = shares.sort(stable=True, dim=1, descending=True)
        return shares[:, :count].contiguous(), index.gather(1, order)[:, :count].contiguous()

    own = first(shares, torch.arange(shares.shape[1], device=shares.device).expand_as(shares))
    weights, index = (torch.cat(each, 1) for each in zip(*team.gathered(own)))
    index, order = index.sort(stable=True, dim=1)
    return first(weights.gather(1, order), index)


def look(
    plan: Plan, gallery: Gallery, z: Tensor, index: Tensor, total: Tensor, settings: Settings, states: dict[Any, State]
) -> Tensor:
    """w_n(j) and w_n(j) x_n(j) of the images of `index` (B, k): (B, k, 2, C, H, W).

    By the kernels that found their shares, from the log-sums over all images.
    """
    chosen = index.unique()
    picked = tuple(gallery.picked(group, chosen) for group in plan.groups)
    result = z.new_zeros(len(z), len(chosen), 2, *z.shape[1:])
    for step in plan.steps:
        members = [picked[place] for place in step.groups]
        if members[0] is None:
            continue
        group, where = members[0]
        reduction = Weights(len(where))
        groups = tuple(replace(plan.groups[p], source=group.source) for p in step.groups)
        small = replace(plan, groups=groups, steps=(replace(step, groups=tuple(range(len(groups)))),))
        (found,) = find(small, z, reduction, total, states={tuple(range(len(groups))): states[step.groups]})
        result[:, where] += torch.as_tensor(found.sums)
    place = torch.searchsorted(chosen, index)
    return result[torch.arange(len(z))[:, None], place]


def _rows(state: State | None, first: int) -> State:
    assert state is not None
    return State(state.top[first : first + AT_ONCE], state.mass[first : first + AT_ONCE])


class Gallery:
    """The images of all sources of a collection, each set once, one after the other."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.sets: list[ImageSet] = []
        for group in groups:
            for part in getattr(images_of(group), "parts", ()):
                if not any(part is known for known in self.sets):
                    self.sets.append(part)
        sizes = torch.tensor([0, *(len(each) for each in self.sets)])
        self.starts = sizes.cumsum(0)
        self.ids = torch.cat([each.ids for each in self.sets]) if self.sets else torch.zeros(0, dtype=torch.long)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def ours(self, team: Alone) -> Tensor:
        """Which of the images are ours, bool."""
        found = torch.zeros(len(self), dtype=torch.bool)
        for start, images in zip(self.starts.tolist(), self.sets):
            for begin, end in team.stretches(len(images)):
                found[start + begin : start + end] = True
        return found

    def _places(self, source: Discrete) -> list[tuple[int, int, int]]:
        """For each part of a source: where it begins there, where here, and how long it is."""
        found, start = [], 0
        for part in source.parts:
            number = next(k for k, each in enumerate(self.sets) if each is part)
            found.append((start, int(self.starts[number]), len(part)))
            start += len(part)
        return found

    def add(self, whole: Tensor, group: Group, shares: Any) -> None:
        """Add the shares (B, N) that a group's images have."""
        source = images_of(group)
        assert source is not None
        for there, here, length in self._places(source):
            whole[:, here : here + length] += shares[:, there : there + length]

    def picked(self, group: Group, chosen: Tensor) -> tuple[Group, Tensor] | None:
        """The group with the chosen images alone as its source, weights as they were, and which these are."""
        source = images_of(group)
        if source is None:
            return None
        index, where = [], []
        for there, here, length in self._places(source):
            mine = ((chosen >= here) & (chosen < here + length)).nonzero()[:, 0]
            index.append(chosen[mine] - here + there)
            where.append(mine)
        places, mine = torch.cat(index), torch.cat(where)
        if len(places) == 0:
            return None
        few = Picked(source, places)
        measure = replace(group.source, base=few) if isinstance(group.source, Translations) else few
        return replace(group, source=measure), mine


class Picked(Discrete):
    """Some images of a source, with the weights that they have there."""

    def __init__(self, source: Discrete, index: Tensor) -> None:
        self.parts = (ImageSet(source.read(index)),)
        self.log_weights = None if source.log_weights is None else source.log_weights[index]

    def changed(self, change: Any) -> Discrete:
        raise NotImplementedError


def images_of(group: Group) -> Discrete | None:
    """The images behind a group's source, None for a Gaussian."""
    source = getattr(group.source, "base", group.source)
    return source if isinstance(source, Discrete) else None
