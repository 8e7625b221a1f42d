"""The one error users see for bad input; the command line turns it into exit code 2."""

from __future__ import annotations


class InputError(ValueError):
    """Something given to fpmc cannot be used; the message names what was received and what to do."""
