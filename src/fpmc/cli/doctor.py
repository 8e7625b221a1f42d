"""fpmc doctor: what is wrong with an installation, and how to mend it."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata, util
from typing import Literal

from fpmc import __version__
from fpmc.cli.options import parse
from fpmc.errors import InputError
from fpmc.files import home

MARKS = {"fine": "✓", "note": "·", "warning": "!", "broken": "✗"}


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    level: Literal["fine", "note", "warning", "broken"]
    what: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{MARKS[self.level]} {self.what}" + (f"\n    → {self.mend}" if self.mend else "")


@dataclass(frozen=True)
class Config:
    """Look at this installation; exit code 0 if it works, perhaps with warnings, 1 if something is broken."""


def main(args: list[str]) -> int:
    parse(Config, args, "doctor")
    print(f"fpmc {__version__} on Python {platform.python_version()}, {platform.platform()}")
    findings = [finding for check in CHECKS for finding in check()]
    for finding in findings:
        print(finding)
    counts = {level: sum(finding.level == level for finding in findings) for level in MARKS}
    print(f"{counts['broken']} broken, {counts['warning']} warnings")
    return 1 if counts["broken"] else 0


def check_requirements() -> Iterator[Finding]:
    """Every package fpmc declares is there, new enough, and imports."""
    try:
        declared = metadata.requires("fpmc") or []
    except metadata.PackageNotFoundError:
        yield Finding("warning", "fpmc itself is not installed, only on the path", "python -m pip install -e .")
        return
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield Finding("broken", "packaging is missing", "python -m pip install packaging")
        return
    for requirement in map(Requirement, declared):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        # numba only makes things fast: without it torch does the work
        level = "warning" if requirement.name == "numba" else "broken"
        cost = "; everything works, but slowly, through torch" if level == "warning" else ""
        mend = f'python -m pip install "{requirement.name}{requirement.specifier}"'
        try:
            version = metadata.version(requirement.name)
            if not requirement.specifier.contains(version, prereleases=True):
                yield Finding(level, f"{requirement.name} {version} is too old ({requirement.specifier}){cost}", mend)
                continue
            import_module({"pillow": "PIL"}.get(requirement.name, requirement.name.replace("-", "_")))
            yield Finding("fine", f"{requirement.name} {version}")
        except metadata.PackageNotFoundError:
            yield Finding(level, f"{requirement.name} is missing{cost}", mend)
        except Exception as error:  # a package can fail to import in any way
            why = _first_line(error)
            yield Finding(level, f"{requirement.name} does not import ({why}){cost}", f"{mend} --force-reinstall")


def check_torchvision() -> Iterator[Finding]:
    """The torchvision of PyPI does not load beside the CPU build of torch, and breaks diffusers while it is there."""
    if util.find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except Exception as error:
        what = f"torchvision does not load beside this torch ({_first_line(error)}), and breaks diffusers"
        yield Finding("broken", what, "python -m pip uninstall torchvision (fpmc does not need it)")


def check_threads() -> Iterator[Finding]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    limit = next((name for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ), None)
    if threads < (cores if limit else cores // 2):  # unasked, torch takes one of the two threads of a core
        mend = f"unset {limit}" if limit else f"export OMP_NUM_THREADS={cores}"
        yield Finding("warning", f"torch uses {threads} of {cores} processors", mend)
    elif cores < 2:
        yield Finding("warning", "only one processor: everything works, slowly", "use fewer images (--max_size)")
    else:
        yield Finding("fine", f"{threads} threads on {cores} processors")
    if torch.cuda.is_available():
        yield Finding("fine", f"GPU: {torch.cuda.get_device_name()}")


def check_denormals() -> Iterator[Finding]:
    """Posterior weights are full of numbers next to 0, which some processors handle ten times slower."""
    import torch

    try:
        if torch.set_flush_denormal(True):
            yield Finding("fine", "denormal numbers can be flushed to 0")
        else:
            yield Finding("warning", "this processor cannot flush denormal numbers; low noise levels are slow")
    finally:
        torch.set_flush_denormal(False)


def check_cache() -> Iterator[Finding]:
    folder = home()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        yield Finding("fine", f"cache folder {folder}")
    except OSError as error:
        what = f"cannot write to the cache folder {folder} ({error.strerror})"
        yield Finding("warning", what, "export FPMC_HOME=a folder you may write to")


def check_data() -> Iterator[Finding]:
    from fpmc.data import load_images

    try:
        yield Finding("fine", f"data: {load_images('fashion')}")
    except (InputError, OSError) as error:
        yield Finding("broken", f"the embedded images cannot be read ({_first_line(error)})", "reinstall fpmc")
    try:
        yield Finding("fine", f"data: {load_images('cifar10')}")
    except (InputError, OSError):
        yield Finding("note", "CIFAR-10 is not here; only needed for --data cifar10", "fpmc data get cifar10")


def _guarded(check: Callable[[], Iterator[Finding]]) -> Callable[[], Iterator[Finding]]:
    """A broken torch breaks the checks that ask it; that is a finding, not the end of the visit."""

    def guarded() -> Iterator[Finding]:
        try:
            yield from check()
        except Exception as error:
            name = check.__name__.removeprefix("check_")
            yield Finding("broken", f"could not look at {name} ({_first_line(error)})", "mend what is above first")

    return guarded


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


CHECKS = [
    _guarded(check)
    for check in (check_requirements, check_torchvision, check_threads, check_denormals, check_cache, check_data)
]
