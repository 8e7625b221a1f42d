"""Commands under torchrun: what its ranks split, who writes, and how long they wait for each other.

Every rank runs the same command. The first one writes the run directory and speaks; the others work in folders of their
own, which begin as copies of it, and are silent but for errors.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from fpmc.errors import InputError, in_short

if TYPE_CHECKING:
    from torch import Tensor

    from fpmc.engine.ranks import Ranks
    from fpmc.process import Denoiser
    from fpmc.report.run import RunDirectory

C = TypeVar("C")
SET_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
FREE = ("shard", "mesh", "timeout")                     # they change no result
BLOCK = 1 << 26                                         # bytes sent at a time


def rank() -> int | None:
    """Which rank of torchrun's this process is, None if it was not started by it."""
    return int(os.environ["RANK"]) if all(name in os.environ for name in SET_BY_TORCHRUN) else None


def leave(code: int) -> None:
    """End a rank at once: to take leave of others that may be gone can take for ever."""
    dist = sys.modules.get("torch.distributed")
    if rank() is not None and dist is not None and dist.is_initialized():
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for folder in Torchrun.folders:
            folder.cleanup()
        os._exit(code)


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    shard: Literal["source", "seeds", "both"] | None = None  # what the ranks of torchrun split; none: the source
    mesh: tuple[int, int] | None = None     # for both: how many ranks split the seeds, and how many the source
    timeout: float = 60.0           # seconds that a rank waits for another before all of them end

    def ranks(self, *, seeds: bool = True) -> Crew:
        """The ranks, or this process alone; seeds: there are some to split."""
        if not seeds and self.shard in ("seeds", "both"):
            raise InputError(f"--shard {self.shard}: there are no seeds to split here; use --shard source")
        if (self.mesh is not None) != (self.shard == "both"):
            raise InputError("--shard both and --mesh SEEDS SOURCE go together, e.g. --shard both --mesh 2 4")
        if self.timeout <= 0:
            raise InputError(f"--timeout {self.timeout:g} must be positive; it is in seconds")
        if rank() is not None:
            if getattr(self, "cluster", None) is not None or (getattr(self, "jobs", None) or 1) > 1:
                raise InputError("--jobs and --cluster start processes of their own; under torchrun leave them out")
            return Torchrun(self)
        if self.shard is not None:
            raise InputError(
                f"--shard {self.shard} splits work over the ranks of torchrun; start it as "
                "torchrun --nproc-per-node 2 -m fpmc …, or leave --shard out"
            )
        return Crew()


class Crew:
    """One process, which has all of the work."""

    def placed(self, config: C) -> C:
        """The settings with this rank's own device and folder."""
        return config

    def sharded(self, denoiser: Any) -> Any:
        """The denoiser with its source split; a network has none and answers on every rank."""
        return denoiser

    def rows(self, denoiser: Denoiser) -> Denoiser:
        """The denoiser with the noisy images of each call split."""
        return denoiser

    def share(self, denoiser: Any) -> Any:
        """The denoiser with both split, as far as it was asked for."""
        return self.rows(self.sharded(denoiser))

    def run(self, path: Path, config: Any, *, command: str, free: tuple[str, ...] = ()) -> RunDirectory:
        """The run directory of the command."""
        from fpmc.report.run import RunDirectory

        return RunDirectory(path, config, command=command, free=(*free, *FREE))


class Torchrun(Crew):
    """A rank among others."""

    folders: ClassVar[list[tempfile.TemporaryDirectory]] = []                  # of ranks that do not write

    def __init__(self, options: RankOptions) -> None:
        self.options, self.number, self.count = options, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local, (seeds, source) = int(os.environ["LOCAL_RANK"]), options.mesh or (1, self.count)
        if seeds < 1 or seeds * source != self.count:
            raise InputError(f"--mesh {seeds} {source} is for {seeds * source} ranks, and there are {self.count}")
        if self.number:
            self.folder = tempfile.TemporaryDirectory(prefix="fpmc-rank-")
            self.folders.append(self.folder)
            sys.stdout = open(os.devnull, "w")          # noqa: SIM115

    def placed(self, config: C) -> C:
        import torch
        import torch.distributed as dist

        device: Any = getattr(config, "device", "cpu")
        if cuda := device.startswith("cuda"):
            device = f"cuda:{self.local}"
            torch.cuda.set_device(self.local)
        try:
            wait = timedelta(seconds=self.options.timeout)
            dist.init_process_group("nccl" if cuda else "gloo", timeout=wait)
            atexit.register(dist.destroy_process_group)
            sys.excepthook = lambda *error: (sys.__excepthook__(*error), leave(1))
            self.groups = self._groups(wait)
        except (RuntimeError, ValueError) as error:
            raise InputError(f"rank {self.number}: the ranks did not find each other ({in_short(error)})") from error
        own: dict[str, Any] = {"device": device} if cuda else {}
        if self.number:
            own["outdir"] = Path(self.folder.name, "run")
        return replace(config, **own)  # pyright: ignore[reportArgumentType]

    def _groups(self, wait: timedelta) -> dict[str, Any]:
        """Those we split seeds with and those we split the source with; None: all ranks."""
        import torch.distributed as dist

        if self.options.mesh is None:
            return {self.options.shard or "source": None}
        _, source = self.options.mesh
        found = {}
        for name, members in (
            ("source", [range(first, first + source) for first in range(0, self.count, source)]),
            ("seeds", [range(first, self.count, source) for first in range(source)]),
        ):
            for each in members:                        # all ranks make all groups
                made = dist.new_group(list(each), timeout=wait)
                if self.number in each:
                    found[name] = made
        return found

    def sharded(self, denoiser: Any) -> Any:
        splits = "source" in self.groups and hasattr(denoiser, "sharded")
        return denoiser.sharded(self.groups["source"]) if splits else denoiser

    def rows(self, denoiser: Denoiser) -> Denoiser:
        from fpmc.engine.ranks import Ranks

        return Rows(denoiser, Ranks(self.groups["seeds"])) if "seeds" in self.groups else denoiser

    def run(self, path: Path, config: Any, *, command: str, free: tuple[str, ...] = ()) -> RunDirectory:
        run = super().run(path, config, command=command, free=free) if self.number == 0 else None
        names = [] if run is None else [p for p in path.rglob("*") if p.is_file() and p.suffix != ".png"]
        listed = [[str(name.relative_to(path)), name.stat().st_size] for name in names]
        for name, size in json.loads(self._sent(json.dumps(listed).encode())):
            self._copy(path / name, size)
        if run is not None:
            return run
        try:
            return super().run(path, config, command=command, free=free)
        except InputError as error:
            raise InputError(
                f"rank {self.number} has other data or settings than rank 0; give it the same ({in_short(error)})"
            ) from error

    def _copy(self, path: Path, size: int) -> None:
        """A file of the first rank's, block by block."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb" if self.number == 0 else "wb") as file:
            for first in range(0, size, BLOCK):
                block = self._sent(file.read(min(BLOCK, size - first)) if self.number == 0 else b"")
                if self.number:
                    file.write(block)

    def _sent(self, data: bytes) -> bytes:
        """What the first rank has."""
        import torch
        import torch.distributed as dist

        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        length = torch.tensor([len(data)], device=device)
        try:
            dist.broadcast(length, 0)
            content = torch.empty(int(length), dtype=torch.uint8)
            if self.number == 0:
                content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            content = content.to(device)
            dist.broadcast(content, 0)
        except RuntimeError as error:
            why = in_short(error, 120)
            raise InputError(f"rank {self.number}: rank 0 has ended or cannot be reached ({why})") from error
        return content.cpu().numpy().tobytes()


class Rows:
    """A denoiser that answers some noisy images of each call on each rank; it is the denoiser in all else."""

    def __init__(self, denoiser: Any, team: Ranks) -> None:
        self.denoiser, self.team = denoiser, team

    def __getattr__(self, name: str) -> Any:
        return getattr(self.denoiser, name)

    def __call__(self, z: Tensor, sigma: float | Tensor, *classes: Tensor) -> Tensor:
        import torch

        team, count = self.team, len(z)
        begin, end = team.stretch(team.rank, count)
        own = [each[begin:end] if isinstance(each, torch.Tensor) and each.ndim else each for each in (sigma, *classes)]
        team.asked(f"rows {sigma}", z)
        answer = torch.zeros_like(z[: -(-count // team.size)])
        if begin < end:
            answer[: end - begin] = self.denoiser(z[begin:end], *own)
        sizes = [end - begin for begin, end in (team.stretch(rank, count) for rank in range(team.size))]
        return torch.cat([rows[:size] for (rows,), size in zip(team.gathered([answer]), sizes)])
