"""Reductions of the posterior equal what the float64 oracle says of it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from engine.contract import Cut
from engine.problems import QUERIES, Problem, close, problems
from fpmc import reference
from fpmc.core.sources import Source
from fpmc.engine import Call, Mass, Settings


def posteriors(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """log p̃(z) and p̃ of every distinct estimator of images, (B, L) and (B, L, N), one group at a time."""
    plan = problem.collection.plan(Call.of(problem.z.double(), problem.sigma))
    (group,) = (each for each in plan.groups if isinstance(each.source, Source))
    x = torch.cat([part.scaled(dtype=torch.float64) for part in group.source.parts])
    weights = group.source.log_weights
    if weights is None:
        weights = -torch.tensor(float(len(x)), dtype=torch.float64).log().expand(len(x))
    logits = reference.logits(problem.z, problem.sigma, group.q.dense(torch.float64), x, weights)
    return logits.logsumexp(2), torch.softmax(logits, 2)


@examples(max_examples=60)
@given(data=st.data(), query=st.sampled_from(QUERIES), source=st.sampled_from(["images", "weighted", "union"]))
def test_mass_effective_number_and_entropy(data: st.DataObject, query: str, source: str) -> None:
    problem = data.draw(problems(query, source))
    if len(problem.collection.groups) > 1:              # something had to answer where this group does not
        return
    log_mass, p = posteriors(problem)
    cut = Cut(data.draw(st.randoms(use_true_random=False)))
    for settings, team in ((None, None), (Settings(chunk=3), None), (None, cut)):
        found = problem.collection.reduce(Mass(), problem.z.double(), problem.sigma, settings, team)
        close(found.log_mass, log_mass, 1e-9 * (1 + log_mass.abs().max().item()))
        close(found.effective, 1 / p.square().sum(2), 1e-9 * p.shape[2])
        close(found.entropy, -torch.xlogy(p, p).sum(2), 1e-9)
    single = problem.collection.reduce(Mass(), problem.z, problem.sigma)
    close(single.entropy, -torch.xlogy(p, p).sum(2), 1e-3 * (1 + problem.sigma**-1))


@examples(max_examples=30)
@given(problem=problems("soft", "weighted"), data=st.data())
def test_shares_of_a_pixel_are_its_weights(problem: Problem, data: st.DataObject) -> None:
    from fpmc.core.fpmc import FPMC

    _, height, width = problem.collection.shape
    pixel = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    denoiser = FPMC(problem.collection)
    one = denoiser.attribute(problem.z, problem.sigma, top=50, pixel=pixel)
    whole = denoiser.attribute(problem.z, problem.sigma, top=50)
    for b in range(len(problem.z)):
        expected = {int(i): w for i, w in zip(whole.index[b], whole.maps[b, :, pixel[0], pixel[1]].tolist())}
        found = dict(zip(one.index[b].tolist(), one.weights[b].tolist()))
        assert all(abs(found[i] - expected[i]) < 1e-5 for i in found)
