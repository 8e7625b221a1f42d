"""The command line: a table of commands, each imported only when it runs, so that `fpmc --help` is instant."""

from __future__ import annotations

import difflib
import errno
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import current_thread, main_thread

from fpmc import __version__
from fpmc.cli.ranks import leave, rank
from fpmc.errors import InputError

COMMANDS = {
    "demo": "samples of every method on the embedded images: a picture and a table, in minutes",
    "data": "fetch, pack and look at data sets",
    "denoise": "denoise images at some noise levels: a picture along sigma and a table of errors",
    "sample": "generate images with one denoiser",
    "evaluate": "r² and MSE of samples against reference samples from the same seeds",
    "explain": "which kernel evaluates a denoiser at a noise level, why, and what it costs",
    "train": "train a network to compare with",
    "convert": "turn a network checkpoint into safetensors without executing it",
    "maps": "sensitivity maps of a network, for PSPC-Flex",
    "calibrate": "find the patch sizes or thresholds at which a method comes closest to a network",
    "finetune": "learn soft Q and R against a network",
    "fit": "weigh several patch sizes against each other in closed form, with or without a network",
    "reproduce": "figures and tables of the paper from cached tasks, its values beside ours",
    "plan": "what sampling will take on many machines: time, memory, traffic, speed-up",
    "attribute": "which training images made a sample or a denoised image, and where",
    "explore": "look into denoisers in a browser: strips along sigma, and who made this pixel",
    "bench": "what every method costs at every noise level, on this machine",
    "doctor": "what is wrong with this installation, and how to mend it",
}
RANKED = ("sample", "denoise", "finetune", "fit", "bench")      # whose work torchrun splits
FULL_OR_FORBIDDEN = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}


def usage() -> str:
    """What `fpmc --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fpmc COMMAND [OPTIONS]",
            "",
            "Filtered posterior mean collections: analytic denoisers for diffusion models.",
            "",
            *lines,
            "",
            "fpmc COMMAND --help lists the options of a command; fpmc --version tells the version.",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 for bad input, 130 after Ctrl-C."""
    args = sys.argv[1:] if argv is None else argv
    name = args[0] if args else "--help"
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        print(f"fpmc {__version__}")
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        return _fail(f"no command {name!r}; " + (f"did you mean {close[0]!r}?" if close else "see fpmc --help"), 2)
    number = rank()
    if number is not None and name not in RANKED:
        if name != "evaluate":
            return _fail(f"fpmc {name} has nothing to split over ranks; start it without torchrun", 2)
        if number > 0:
            return 0                                    # the first rank compares the samples
    with _listening() as asked, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\b")  # about its own insides: nothing a user could do
        try:
            return import_module(f"fpmc.cli.{name}").main(args[1:]) or 0
        except SystemExit as leaving:  # the option parser has printed what is wrong
            return leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 2
        except KeyboardInterrupt:
            return _stopped()
        except BrokenPipeError:  # fpmc … | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception as error:
            if asked:  # libraries make other errors of a Ctrl-C in their callbacks
                return _stopped()
            if isinstance(error, InputError):
                return _fail(" ".join(str(error).split()), 2)
            if not isinstance(error, OSError) or error.errno not in FULL_OR_FORBIDDEN:
                raise
            return _fail(f"{error.strerror}: {error.filename}", 1)


@contextmanager
def _listening() -> Iterator[list[int]]:
    """Where a Ctrl-C is written down, besides being raised."""
    asked: list[int] = []

    def heard(number: int, _: object) -> None:
        asked.append(number)
        sys.unraisablehook = lambda _: None             # objects that are half made complain as they go
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or current_thread() is not main_thread():
        yield asked
        return
    signal.signal(signal.SIGINT, heard)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stopped() -> int:
    print("\nfpmc: interrupted; the same command goes on where it stopped", file=sys.stderr)
    return 130


def _fail(message: str, code: int) -> int:
    who = f"rank {number}: " if (number := rank()) else ""
    print(f"fpmc: {who}error: {message}", file=sys.stderr)
    leave(code)
    return code
