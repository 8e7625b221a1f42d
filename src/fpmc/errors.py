"""The one error users see for bad input; the command line turns it into exit code 2."""

from __future__ import annotations


class InputError(ValueError):
    """Something given to fpmc cannot be used; the message names what was received and what to do."""


def in_short(error: BaseException, most: int = 200) -> str:
    """What another library has to say, on one line of bounded length."""
    text = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text[: most + 1])
    return text if len(text) <= most else f"{text[:most]}…"


def show(value: object, most: int = 60) -> str:
    """A value that was given, for an error message: on one line, and never long."""
    text = repr(value) if isinstance(value, int | float | str | bool | bytes | None) else type(value).__name__
    return text if len(text) <= most else f"{text[:most]}…"
