"""Kill every long command, interrupt it, fill its disk, run it twice at once: results must be those of a quiet run.

    python scripts/kill_campaign.py --out campaign.json            # all commands: 20 kills, 5 interrupts, 10 full disks
    python scripts/kill_campaign.py --commands sample fit --kills 5

A command runs in a process of its own, forked from this one, in which everything is imported already. It is killed
(SIGKILL) at random moments (seeded) and run again until it is done; then every file it left is compared, byte for byte,
with those of a run that nobody disturbed. What may differ is in MAY_DIFFER and TIMES, and nothing else. Full disks are
file systems of a tenth, two tenths … of what the whole run needs, made larger when the command has given up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

DATA, NETWORK = ("--data", "{in}/data"), ("--network", "{in}/network.safetensors")
LEVELS = ("--sigmas", "4", "1", "0.3")
# Each writes into "out", a folder or a file, and takes a second or two.
COMMANDS: dict[str, tuple[str, ...]] = {
    "sample": (*DATA, "--denoiser", "els:schedule=3", "--seeds", "0-5", "--batch", "2", "--steps", "8"),
    "train": (
        *DATA, "--channels", "8", "--mults", "1", "1", "--blocks", "1", "--attention", "4", "--images", "128",
        "--batch", "16", "--validation", "8", "--save_minutes", "0", "--precision", "float32",
    ),
    "finetune": (
        *DATA, *NETWORK, *LEVELS, "--denoiser", "pspc_square:schedule=3", "--recipe", "paper", "--steps", "6",
        "--batch", "8", "--floor_q", "0", "--floor_r", "0",
    ),
    "fit": (*DATA, *LEVELS, "--count", "64", "--sizes", "3", "5"),
    "calibrate": (*DATA, *NETWORK, *LEVELS, "--method", "ls", "--values", "3", "5", "7", "--count", "32"),
    "maps": (*DATA, *NETWORK, *LEVELS, "--draws", "4"),
    "reproduce": (
        "table1", "schedules", *DATA, *NETWORK, "--reference", "{in}/reference.safetensors", "--jobs", "1",
    ),
    "attribute": (*DATA, "--denoiser", "ls:schedule=3", "--pixel", "3", "4", "--top", "4"),
    "denoise": (*DATA, *LEVELS, "--denoiser", "optimal", "wiener", "ls:schedule=3"),
    "evaluate": ("{in}/samples/a", "{in}/samples/b"),
    "bench": (*DATA, *LEVELS, "--denoiser", "optimal", "ls:schedule=3", "--checked", "20", "--repeats", "1"),
    "convert": ("{in}/network.safetensors", "out/network.safetensors"),
    "data": ("augment", "{in}/data", "out/turned.zip", "--kind", "rotate", "--amount", "8"),
    "explore": (*DATA, *NETWORK, "--denoiser", "ls:schedule=3", "--export", "out/page.html"),
}
NO_OUTDIR = ("convert", "data", "explore")              # which name the file
MAY_DIFFER = {
    "log.txt": "has times, and a line for each time the run was resumed",
    "metrics.jsonl": "has times, and a step that was written down before the kill comes again after it",
    "environment.json": "has the time of the last sitting",
}
TIMES = re.compile(r"seconds|^time$")                   # keys of JSON whose values are times
TIMED = {                                               # files that hold times among other things
    "train": {"checkpoint.pt", ".checkpoint.pt.sha256"},
    "finetune": {"table.md"},
    "reproduce": {"index.html"},
    "bench": {"table.md", "metrics.json", "costs.png"},
}
LIMIT = 3.0                                             # seconds from Ctrl-C to the end


class Ended(NamedTuple):
    code: int | None                                    # None: it had to be killed
    said: str
    seconds: float                                      # from the signal, or from the start


def prepare(folder: Path) -> None:
    """Images, networks and samples for the commands to work on; and everything is imported and compiled."""
    import torch

    torch.set_num_threads(1)                            # pools of threads do not survive a fork
    import fpmc
    from fpmc.cli import COMMANDS as EVERY
    from fpmc.cli import main
    from fpmc.study.scale import SCALES
    from study.tiny import TINY, small_files

    SCALES["laptop"] = TINY
    small_files(folder)
    os.environ["FPMC_HOME"] = str(folder / "home")
    for name in ("a", "b"):
        word = "ls:schedule=3" if name == "a" else "wiener"
        quiet(lambda name=name, word=word: main(
            ["sample", "--data", str(folder / "data"), "--denoiser", word, "--steps", "3", "--seeds", "0-3",
             "--outdir", str(folder / "samples" / name)]
        ))
    for name in EVERY:
        __import__(f"fpmc.cli.{name}")
    for name in ("explore.export", "study.reproduce", "study.bench", "networks.training", "augmentation.warp"):
        __import__(f"fpmc.{name}")
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg", "scipy.optimize", "scipy.ndimage"):
        __import__(name)
    assert fpmc.load_network(str(folder / "network.safetensors"))


def quiet(work: Any) -> None:
    """Call something without what it prints."""
    kept = os.dup(1)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        try:
            work()
        finally:
            os.dup2(kept, 1)
            os.close(kept)


class Job:
    """One command at work in a folder."""

    def __init__(self, name: str, inputs: Path, folder: Path) -> None:
        words = [word.replace("{in}", str(inputs)) for word in COMMANDS[name]]
        args = [name, *words, *(() if name in NO_OUTDIR else ("--outdir", "out"))]
        self.log = folder.parent / f"{folder.name}.{time.monotonic_ns()}.log"  # not on a disk that is full
        self.began = time.monotonic()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._work(args, folder)

    def _work(self, args: list[str], folder: Path) -> None:
        code = 70
        try:
            os.setsid()
            os.chdir(folder)
            os.environ["FPMC_HOME"] = str(folder / "home")
            out = os.open(self.log, os.O_WRONLY | os.O_CREAT)
            os.dup2(out, 1)
            os.dup2(out, 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            from fpmc.cli import main

            Path("out").mkdir(exist_ok=True) if args[0] in NO_OUTDIR else None
            code = main(args)
            sys.stdout.flush()
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def wait(self, seconds: float) -> Ended | None:
        """How it ended, if it did within so many seconds."""
        since = time.monotonic()
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                said = self.log.read_text(errors="replace") if self.log.exists() else ""
                return Ended(os.waitstatus_to_exitcode(status), said, time.monotonic() - since)
            if time.monotonic() - since > seconds:
                return None
            time.sleep(0.005)

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL) if os.getpgid(self.pid) == self.pid else os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def interrupt(self) -> Ended:
        """Ctrl-C; after a minute it counts as deaf."""
        os.kill(self.pid, signal.SIGINT)
        ended = self.wait(60)
        if ended is None:
            self.kill()
        return ended or Ended(None, "", 60.0)


def contents(folder: Path, name: str) -> dict[str, bytes]:
    """Every file below `out`, without what may differ."""
    found = {}
    for path in sorted((folder / "out").rglob("*")):
        inside = str(path.relative_to(folder / "out"))
        if not path.is_file() or path.name in {*MAY_DIFFER, *TIMED.get(name, ())}:
            continue
        content = path.read_bytes()
        if path.suffix == ".json":
            content = json.dumps(_timeless(json.loads(content)), sort_keys=True).encode()
        if path.suffix == ".safetensors":
            content = _timeless_tensors(content)
        found[inside] = content
    return found


def _timeless_tensors(content: bytes) -> bytes:
    """A cached result says in its metadata, which are JSON, how long it took."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    for key, text in header.get("__metadata__", {}).items():
        if text.startswith("{"):
            header["__metadata__"][key] = json.dumps(_timeless(json.loads(text)))
    return json.dumps(header, sort_keys=True).encode() + content[end:]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if not TIMES.search(key)}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


class Campaign:
    """One command against everything."""

    def __init__(self, name: str, inputs: Path, folder: Path, seed: int) -> None:
        self.name, self.inputs, self.folder, self.random = name, inputs, folder, random.Random(f"{seed} {name}")
        self.problems: list[str] = []
        self.places = 0
        whole = self.place()
        ended = self.start(whole).wait(600)
        if ended is None or ended.code:
            raise SystemExit(f"{name} does not run by itself:\n{ended and ended.said}")
        self.usual, self.wanted = ended.seconds, contents(whole, name)
        self.bytes = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())

    def place(self) -> Path:
        self.places += 1
        (self.folder / str(self.places)).mkdir(parents=True)
        return self.folder / str(self.places)

    def start(self, place: Path) -> Job:
        return Job(self.name, self.inputs, place)

    def finish(self, place: Path, what: str) -> None:
        """Run it to its end and compare."""
        ended = self.start(place).wait(600)
        if ended is None or ended.code:
            self.problems.append(f"{what}: resumed, it ended with {ended and (ended.code, ended.said[-500:])}")
            return
        self.compare(place, what)

    def compare(self, place: Path, what: str) -> None:
        if differ := self.differ(place):
            self.problems.append(f"{what}: {', '.join(differ)} differ")
        if left := [path.name for path in place.rglob("*.part*")]:
            self.problems.append(f"{what}: left behind {', '.join(left)}")
        shutil.rmtree(place, ignore_errors=True)

    def differ(self, place: Path) -> list[str]:
        """The files that are not those of the quiet run."""
        found = contents(place, self.name)
        return [name for name in sorted({*found, *self.wanted}) if found.get(name) != self.wanted.get(name)]

    def traceback(self, ended: Ended, what: str) -> None:
        if "Traceback" in ended.said:
            self.problems.append(f"{what}: a traceback: {ended.said[-500:]}")

    def kills(self, count: int) -> dict[str, Any]:
        done = runs = 0
        while done < count:
            place, runs = self.place(), runs + 1
            while done < count:
                job = self.start(place)
                ended = job.wait(self.random.uniform(0, self.usual))
                if ended is not None:
                    self.traceback(ended, f"after {done} kills")
                    self.usual = min(self.usual, ended.seconds)
                    break
                job.kill()
                done += 1
            self.finish(place, f"after {done} kills")
        return {"kills": done, "runs": runs}

    def interrupts(self, count: int) -> dict[str, Any]:
        place, slowest, codes = self.place(), 0.0, []
        for _ in range(count):
            job = self.start(place)
            ended = job.wait(self.random.uniform(0.02, self.usual))
            if ended is None:
                ended = job.interrupt()
                slowest = max(slowest, ended.seconds)
            codes.append(ended.code)
            self.traceback(ended, "interrupted")
            if ended.code not in (0, 130):
                self.problems.append(f"interrupted, it ended with {ended.code}: {ended.said[-300:]}")
        if slowest > LIMIT:
            self.problems.append(f"{slowest:.1f} s from Ctrl-C to the end")
        self.finish(place, "after interrupts")
        return {"interrupts": codes.count(130), "slowest_seconds": round(slowest, 2)}

    def disks(self, count: int) -> dict[str, Any]:
        full = 0
        for number in range(count):
            size = max(16_384, self.bytes * (number + 1) // (count + 1))
            with disk(self.place(), size) as (place, grow):
                ended = self.start(place).wait(600)
                assert ended is not None
                self.traceback(ended, f"a disk of {size} bytes")
                full += ended.code == 2
                lines = [line for line in ended.said.splitlines() if line.startswith("fpmc: error:")]
                if ended.code not in (0, 2) or (ended.code == 2 and "the disk is full" not in "".join(lines)):
                    self.problems.append(f"a disk of {size} bytes: {ended.code}, {ended.said[-300:]}")
                grow()
                ended = self.start(place).wait(600)
                if ended is None or ended.code:
                    self.problems.append(f"a disk that was grown: {ended and (ended.code, ended.said[-300:])}")
                elif differ := self.differ(place):
                    self.problems.append(f"a disk of {size} bytes: {', '.join(differ)} differ")
        return {"disks": count, "of_these_full": full}

    def two(self) -> dict[str, Any]:
        place = self.place()
        both = [self.start(place), self.start(place)]
        ended = [job.wait(600) for job in both]
        codes = sorted(each.code for each in ended if each is not None and each.code is not None)
        for each in ended:
            assert each is not None
            self.traceback(each, "two at once")
            if each.code == 2 and "another process is writing" not in each.said:
                self.problems.append(f"two at once: {each.said[-300:]}")
        if 0 not in codes or not set(codes) <= {0, 2}:
            self.problems.append(f"two at once ended with {codes}")
        self.compare(place, "two at once")
        return {"two_at_once": "one was refused" if 2 in codes else "both were done"}


@contextmanager
def disk(place: Path, size: int) -> Iterator[tuple[Path, Any]]:
    """A file system of so many bytes, and what makes it large."""
    def mount(options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True, capture_output=True)

    mount(f"size={size}")
    try:
        yield place, lambda: mount("remount,size=1g")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--interrupts", type=int, default=5)
    parser.add_argument("--disks", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("campaign.json"))
    args = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder) / "in")
        for name in args.commands:
            one = Campaign(name, Path(folder) / "in", Path(folder) / name, args.seed)
            results[name] = {"seconds": round(one.usual, 2), "files_compared": len(one.wanted)}
            results[name] |= one.kills(args.kills) | one.interrupts(args.interrupts) | one.disks(args.disks) | one.two()
            results[name]["problems"] = one.problems
            print(f"{name}: {results[name]}", flush=True)
            args.out.write_text(json.dumps(results, indent=2) + "\n")
            shutil.rmtree(Path(folder) / name, ignore_errors=True)
    return int(any(each["problems"] for each in results.values()))


if __name__ == "__main__":
    sys.exit(main())
