"""Names in code spans that the API knows become links: `fpmc.sample`, and in docstrings `Tuning` or `fit_response`."""

from __future__ import annotations

import re
from collections import defaultdict

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

NAME = re.compile(r"((?:fpmc\.)?[\w.]+)(?:\(.*\))?", re.DOTALL)
DISTINCT = re.compile(r"[A-Z]|_")       # a bare name must look like one: `Tuning`, `fit_response`, not `sample`
LINKED = (nodes.reference, nodes.title, addnodes.pending_xref)


class Names(SphinxPostTransform):
    default_priority = 20

    def run(self, **kwargs) -> None:
        known = self.env.domains.python_domain.objects
        short: dict[str, set[str]] = defaultdict(set)       # the places that a bare name may mean
        for name, place in known.items():
            short[name.rpartition(".")[2]].add(place.node_id)
        for literal in list(self.document.findall(nodes.literal)):
            found = NAME.fullmatch(literal.astext())
            if found is None or isinstance(literal.parent, LINKED):
                continue
            name = found[1]
            if name not in known and len(short[name]) == 1 and DISTINCT.search(name):
                name = min((full for full in known if full.endswith(f".{name}")), key=len)
            if name not in known:
                continue
            place = known[name]
            link = make_refnode(
                self.app.builder, self.env.docname, place.docname, place.node_id, literal.deepcopy(), name
            )
            literal.replace_self(link)


def setup(app) -> dict[str, bool]:
    app.add_post_transform(Names)
    return {"parallel_read_safe": True}
