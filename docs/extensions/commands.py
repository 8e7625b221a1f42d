"""The command reference, read off the parsers: `{commands}` in a page becomes a section for each command."""

from __future__ import annotations

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from extensions.options import options, parsers
from fpmc.cli import COMMANDS


class Commands(SphinxDirective):
    has_content = False

    def run(self) -> list[nodes.Node]:
        return [self.section(name, what) for name, what in COMMANDS.items()]

    def section(self, name: str, what: str) -> nodes.section:
        section = nodes.section(ids=[f"fpmc-{name}"], names=[f"fpmc {name}"])
        section += nodes.title("", "", nodes.literal("", f"fpmc {name}"))
        found = parsers(name)
        if len(found) > 1:
            section += nodes.paragraph("", what[0].upper() + what[1:] + ".")
        for parser in found:
            if len(found) > 1:
                section += nodes.rubric("", "", nodes.literal("", parser.prog))
            for text in (parser.description or what).split("\n\n"):
                section += nodes.paragraph("", " ".join(text.split()))
            section += self.listed(list(options(parser)))
        self.state.document.note_explicit_target(section, section)
        return section

    def listed(self, found: list[tuple[str, str, str]]) -> nodes.Node:
        """A list, not a table: it fits a phone."""
        if not found:
            return nodes.paragraph("", "No options.")
        listed = nodes.definition_list(classes=["options"])
        for typed, meaning, default in found:
            term = nodes.term("", "", nodes.literal("", typed))
            if default in ("required", "repeatable"):
                term += nodes.inline("", f" {default}", classes=["default"])
            elif default:
                term += [nodes.inline("", " default ", classes=["default"]), nodes.literal("", default)]
            listed += nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph("", meaning)))
        return listed


def setup(app) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
