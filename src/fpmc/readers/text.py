"""JSON and YAML from outside: bounded in bytes and nesting, no key twice, an object or list as asked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from fpmc.errors import InputError, in_short
from fpmc.readers.source import read_bytes, reading

MOST_BYTES = 16 * 2**20
MOST_DEPTH = 32
LONGEST_LINE = 2**20
TOKENS = re.compile(rb'\\.|["\[\]{}]', re.DOTALL)


def read_json(
    path: str | os.PathLike[str], max_bytes: int = MOST_BYTES, max_depth: int = MOST_DEPTH, *, kind: type | None = None
) -> Any:
    """The content of a JSON file; `kind` is dict or list if only that will do."""
    with reading(path):
        return parse_json(read_bytes(path, max_bytes), max_depth, kind=kind)


def parse_json(text: bytes | str, max_depth: int = MOST_DEPTH, *, kind: type | None = None) -> Any:
    """JSON of bounded nesting; a key that is there twice is an error, not a choice."""
    try:
        data = text.encode() if isinstance(text, str) else text
        _check_depth(data, max_depth)
        value = json.loads(data, object_pairs_hook=_unique)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is not JSON ({in_short(error)}); make it again") from error
    return _of_kind(value, kind)


def _of_kind(value: Any, kind: type | None) -> Any:
    if kind is not None and type(value) is not kind:
        names = {dict: "an object {…}", list: "a list […]"}
        raise InputError(f"it must hold {names.get(kind, kind.__name__)}; it holds {type(value).__name__}")
    return value


def read_lines(path: str | os.PathLike[str], max_bytes: int = 2**28) -> list[dict[str, Any]]:
    """The objects of a file that has one on every line (JSON Lines)."""
    found = []
    with reading(path, "delete the damaged line"):
        for number, line in enumerate(read_bytes(path, max_bytes).splitlines(), 1):
            try:
                if len(line) > LONGEST_LINE:
                    raise InputError(f"it has {len(line):,} bytes")
                found.append(parse_json(line, kind=dict))
            except InputError as error:
                raise InputError(f"line {number} is damaged: {error}; delete that line") from error
    return found


def _check_depth(data: bytes, most: int) -> None:
    if data.count(b"[") + data.count(b"{") <= most:
        return
    depth, quoted = 0, False
    for token in TOKENS.findall(data):
        if token == b'"':
            quoted = not quoted
        elif not quoted and token in b"[{":
            depth += 1
            if depth > most:
                raise InputError(f"it is nested more than {most} deep; no file of fpmc is")
        elif not quoted and token in b"]}":
            depth -= 1


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise InputError(f"it has the key {twice[:60]!r} twice; keep one")
    return found


def read_yaml(path: str | os.PathLike[str], max_bytes: int = 2**16, *, kind: type | None = None) -> Any:
    """The content of a YAML file: plain values only, no tags, no anchors, no key twice."""
    import yaml

    class Plain(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            pairs = [(str(key.value), None) for key, _ in node.value]
            _unique(pairs)
            return super().construct_mapping(node, deep)

    with reading(path):
        text, depth = read_bytes(path, max_bytes).decode(), 0
        for event in yaml.parse(text, yaml.SafeLoader):
            if getattr(event, "tag", None) or getattr(event, "anchor", None):
                raise InputError(f"line {event.start_mark.line + 1} has a tag or an anchor; write plain values")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                raise InputError(f"it is nested more than {MOST_DEPTH} deep; no file of fpmc is")
        return _of_kind(yaml.load(text, Plain), kind)   # a SafeLoader: nothing is executed
