"""What a parameter means, from where the source says it: the comment behind it, or `name: …` in the docstring."""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from typing import Any

# Words that mean the same wherever they stand; a comment or a docstring comes first.
COMMON = {
    "images": "the training images",
    "source": "the training images: an `ImageSet`, or a `Source`",
    "denoiser": "anything called as (z, sigma); analytic or a network",
    "network": "the network to come near to, called as (z, sigma)",
    "collections": "the denoiser whose groups are weighed",
    "reference": "what to compare with, image by image",
    "amount": "how many, in multiples of the images",
    "sigmas": "noise levels",
    "schedule": "by noise level, the patch size or threshold: the name of a table (`cifar10`, `ffhq`, `afhq`), a file, "
    "{sigma: value}, or one number; None: the table of the nearest resolution, scaled",
    "tau": "the threshold, or one for each noise level",
    "rule": "how rows become masks, as in the paper or as in the official code",
    "stride": "take only every so many-th square",
    "around": "q outside of the squares",
    "shape": "of the patches, one or several",
    "gaussian": "whether the Wiener filter takes part",
    "maps": "sensitivity maps for patches of the shape flex",
    "name": "what it is called in tables and pictures",
    "split": "train or test",
    "learn": "what to learn: q, r or both",
    "per": "one weight for each group, or one for each channel or pixel",
    "seeds": "one sample each; a sample depends on nothing else of the call",
    "steps": "noise levels visited",
    "sigma_min": "lowest noise level",
    "sigma_max": "highest noise level, where sampling starts",
    "rho": "how the levels crowd at the low end",
    "solver": "of the ODE; ddim is euler by its other name",
    "trajectory": "keep the states at all noise levels",
    "seed": "of everything drawn",
    "batch": "how many are computed together; only memory and speed depend on it",
    "device": "where it is computed",
    "progress": "called with what is done",
    "say": "what is done with messages",
}


def documented(thing: Any, lines: list[str]) -> dict[str, str]:
    """{parameter: meaning} of a function or class; what stood in the prose of `lines` is taken out of it."""
    names = parameters(thing)
    found = comments(thing, names)
    prose = "\n".join(lines)
    pattern = re.compile(rf"(?:^|(?<=[.;]\s))({'|'.join(map(re.escape, names)) or '$^'}): ", re.MULTILINE)
    places = list(pattern.finditer(prose))
    for place, after in zip(places, [*places[1:], None]):
        end = after.start() if after else place.end() + _paragraph(prose[place.end() :])
        found[place[1]] = " ".join(prose[place.end() : end].split()).rstrip(";")
    for place, after in reversed(list(zip(places, [*places[1:], None]))):
        end = after.start() if after else place.end() + _paragraph(prose[place.end() :])
        prose = prose[: place.start()] + prose[end:]
    lines[:] = prose.split("\n")
    found = COMMON | found
    return {name: found[name] for name in names if name in found}


def _paragraph(text: str) -> int:
    end = text.find("\n\n")
    return len(text) if end < 0 else end


def parameters(thing: Any) -> list[str]:
    try:
        names = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return []
    keep = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in names if p.kind in keep and p.name not in ("self", "cls")]


def comments(thing: Any, names: list[str]) -> dict[str, str]:
    """The comment that ends the line of a parameter, or of a field of a class."""
    try:
        text = textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))
    except (OSError, TypeError):
        return {}
    remarks = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith(("# pyright", "# noqa", "# fmt"))
    }
    (tree,) = ast.parse(text).body
    found: dict[str, str] = {}
    for scope in [tree, *(node for node in getattr(tree, "body", ()) if getattr(node, "name", "") == "__init__")]:
        for node in _declared(scope):
            name = node.arg if isinstance(node, ast.arg) else getattr(node.target, "id", "")
            last = node.end_lineno or node.lineno
            if name in names and last in remarks:
                found.setdefault(name, remarks[last])
    return found


def _declared(scope: ast.AST) -> list[ast.arg | ast.AnnAssign]:
    if isinstance(scope, ast.ClassDef):
        return [node for node in scope.body if isinstance(node, ast.AnnAssign)]
    if isinstance(scope, ast.FunctionDef):
        lines = [arg.lineno for arg in scope.args.args + scope.args.kwonlyargs]
        alone = [arg for arg in scope.args.args + scope.args.kwonlyargs if lines.count(arg.lineno) == 1]
        return [arg for arg in alone if arg.lineno > scope.lineno]
    return []


def describe(app, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    if what not in ("function", "method", "class"):
        return
    for parameter, meaning in documented(thing, lines).items():
        lines += ["", f":param {parameter}: {meaning}"]


def setup(app) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", describe, priority=900)    # after napoleon
    return {"parallel_read_safe": True}
