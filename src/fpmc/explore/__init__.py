"""The page one looks into a denoiser with: `fpmc.explore(d, images)`, or `fpmc explore` on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from fpmc.core.sources import Source
    from fpmc.images import ImageSet
    from fpmc.process import Denoiser


def explore(
    denoiser: Denoiser | Sequence[Denoiser],
    images: ImageSet | Source,
    network: Denoiser | Sequence[Denoiser] | None = None,   # to compare with; the first judges
    port: int = 0,                                          # 0: any that is free
    export: str | os.PathLike[str] | None = None,           # write one file with some views instead
    *,
    maps: Mapping[float, Tensor] | None = None,             # sensitivity maps to show beside q
    names: Sequence[str] | None = None,                     # of the denoisers, then of the networks
    device: str = "cpu",
    browser: bool = True,                                   # open it
    say: Callable[[str], object] = print,
    progress: Callable[[int, int], object] = lambda done, total: None,     # of an export: views done, views in all
) -> None:
    """Look into denoisers: what they make of noise, and which training images made each pixel of it.

    Serves a page on 127.0.0.1 until interrupted, or writes it as one file that needs no server.
    """
    from fpmc.explore.session import Session

    session = Session(_several(denoiser), images, _several(network), maps=maps, names=names, device=device)
    if export is not None:
        from fpmc.explore.export import export_page

        say(f"{export}: {export_page(session, export, say=say, progress=progress) / 1e6:.1f} MB")
    else:
        from fpmc.explore.serve import serve

        serve(session, port=port, browser=browser, say=say)


def _several(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, Sequence) else [given]


class _Callable(ModuleType):
    """`fpmc.explore` names this package as well as its function: whichever one gets hold of can be called."""

    def __call__(self, *args: Any, **options: Any) -> None:
        explore(*args, **options)


sys.modules[__name__].__class__ = _Callable
