"""What every command takes, read off its parser."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from unittest import mock

import tyro

NOTE = re.compile(r"\s*\((default: .*|required|repeatable)\)$")       # how tyro ends the help of an option
MANY = re.compile(r"\[+(\w+) \[\1 \.\.\.\]+")


class Asked(Exception):
    """Leaves a command at the point where it reads its options."""


def parsers(command: str) -> list[argparse.ArgumentParser]:
    """The parser of a command, or those of its own commands (`fpmc data get`), as the command itself makes them."""
    found: list[argparse.ArgumentParser] = []

    def parser(config, prog: str, description: str | None = None, **look) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)     # there is no other way to ask tyro yet
            found.append(
                tyro.extras.get_parser(config, prog=prog, description=description, use_underscores=True)
            )

    def one(config, *, prog: str, description: str | None = None, **_) -> None:
        parser(config, prog, description)
        raise Asked

    def several(functions, *, prog: str, **_) -> None:
        for name, function in functions.items():
            parser(function, f"{prog} {name}", (function.__doc__ or "").partition("\n\n    Args:")[0])
        raise Asked

    with (
        mock.patch("tyro.cli", one),
        mock.patch("tyro.extras.subcommand_cli_from_dict", several),
    ):
        try:
            import_module(f"fpmc.cli.{command}").main([])
        except Asked:
            return found
    raise RuntimeError(f"fpmc {command} did not ask for its options")


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, str]]:
    """(what one types, what it means, its default) of each option."""
    for action in parser._actions:
        if action.dest == "help":
            continue
        text, default = " ".join(str(action.help or "").replace("%%", "%").split()), ""
        if found := NOTE.search(text):
            text, default = text[: found.start()], found[1]
        shape = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar or ""
        shape = MANY.sub(r"\1 …", shape.replace("{None}|", ""))
        typed = f"{action.option_strings[0]} {shape}" if action.option_strings else action.dest
        yield typed.strip(), text, default.removeprefix("default: ").replace("None", "").strip()
