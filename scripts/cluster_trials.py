"""What clusters survive, tried for real: `python scripts/cluster_trials.py sizes|kills|scheduler|together|hosts`.

sizes: local clusters of 1, 2 and 4 workers. kills: a worker killed ten times at random moments. scheduler: killed once,
then the same command. together: two commands on one cache at once. hosts: four hosts in network namespaces (needs root)
with addresses and folders of their own; the link of a worker, then of the command, is cut. All of them compare the
tables with those of one process, and say how often each task was computed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
METHODS = ("optimal", "ls", "pspc_square", "pspc_flex")
# The command, with any number of workers: even one is a cluster here.
RUN = """
import sys
from fpmc.cli import main
from fpmc.study.cluster import Where
Where.many = lambda self, say: "--alone" not in sys.argv
sys.exit(main([word for word in sys.argv[1:] if word != "--alone"]))
"""


class Trial:
    """A folder with a small study: 8×8 images and two untrained networks."""

    def __init__(self, folder: Path, seeds: int) -> None:
        import numpy as np

        from fpmc.networks import save_network
        from study.tiny import small_network, smooth_images

        self.folder, self.seeds = folder, seeds
        np.save(folder / "data.npy", smooth_images(40, 8).pixels.numpy())
        for seed, name in enumerate(("network", "reference")):
            save_network(small_network(8, seed), folder / f"{name}.safetensors")
        names = {"data": "data.npy", "network": "network.safetensors", "reference": "reference.safetensors"}
        self.files = [word for option, name in names.items() for word in (f"--{option}", str(folder / name))]
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2]), "FPMC_HOME": str(folder / "home"),
                    "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

    def command(self, out: str, *words: str) -> list[str]:
        options = [*self.files, "--methods", *METHODS, "--seeds", str(self.seeds), "--outdir", str(self.folder / out)]
        return [sys.executable, "-c", RUN, "reproduce", "table-results", *options, *words]

    def start(self, out: str, *words: str, prefix: list[str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*(prefix or []), *self.command(out, *words)], env=self.env, text=True, cwd=self.folder,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )

    def finish(self, process: subprocess.Popen[str], out: str, **facts: object) -> None:
        """Wait, compare with one process, and say what happened."""
        said, _ = process.communicate()
        if process.returncode:
            sys.exit(f"{out}: exit code {process.returncode}\n{said}")
        log = (self.folder / out / "log.txt").read_text()
        times = computed(log)
        same = self.table(out) == self.table("alone")
        print(f"{out}: tables {'identical' if same else 'DIFFER'}; {len(times)} tasks, computed at most "
              f"{max(times.values(), default=0)} times;", ", ".join(f"{k} {v}" for k, v in facts.items()), flush=True)
        if not same or max(times.values(), default=0) > 1:
            sys.exit(1)

    def table(self, out: str) -> str:
        return (self.folder / out / "table-results.csv").read_text()

    def done(self, out: str) -> int:
        return len(list((self.folder / out / "cache").glob("*.safetensors")))


def computed(log: str) -> Counter[str]:
    """How often each task was computed to its end, by the lines of a log."""
    return Counter(re.findall(r"  (\w+/.*): [\d.]+ s$", log, re.MULTILINE))


def sizes(trial: Trial) -> None:
    for count in (1, 2, 4):
        out = f"workers-{count}"
        trial.finish(trial.start(out, "--jobs", str(count)), out)


def kills(trial: Trial, count: int = 10) -> None:
    import psutil

    dice, hits = random.Random(0), 0
    process = trial.start("kills", "--jobs", "2")
    while process.poll() is None and hits < count:
        time.sleep(dice.uniform(0.5, 4.0))
        try:
            family = psutil.Process(process.pid).children(recursive=True)
            workers = [each for each in family if "spawn_main" in " ".join(each.cmdline())]
            if workers:
                dice.choice(workers).kill()
                hits += 1
        except psutil.Error:
            continue
    trial.finish(process, "kills", kills=hits)


class Running:
    """A scheduler and workers in processes of their own, each perhaps in a host of its own."""

    def __init__(self, trial: Trial, host: str = "127.0.0.1", prefix: list[str] | None = None) -> None:
        self.trial, self.address, self.processes = trial, f"tcp://{host}:8786", []
        self._dask("scheduler", "--host", host, "--port", "8786", "--no-dashboard", prefix=prefix)

    def _dask(self, kind: str, *words: str, prefix: list[str] | None = None) -> None:
        command = [*(prefix or []), sys.executable, "-m", f"distributed.cli.dask_{kind}", *words]
        with (self.trial.folder / f"{kind}.log").open("a") as log:
            started = subprocess.Popen(command, env=self.trial.env, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(started)

    def worker(self, host: str = "127.0.0.1", prefix: list[str] | None = None) -> None:
        words = f"{self.address} --host {host} --nthreads 1 --no-dashboard --local-directory /tmp".split()
        self._dask("worker", *words, prefix=prefix)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def scheduler(trial: Trial) -> None:
    for sitting in (1, 2):
        running = Running(trial)
        for _ in range(2):
            running.worker()
        process = trial.start("scheduler", "--cluster", running.address)
        if sitting == 1:
            while trial.done("scheduler") < 3:
                time.sleep(0.05)
            running.processes[0].kill()
            cut = time.monotonic()
            said, _ = process.communicate()
            print(f"scheduler killed after {trial.done('scheduler')} tasks: exit code {process.returncode} after "
                  f"{time.monotonic() - cut:.1f} s: {said.strip().splitlines()[-1]}")
        else:
            trial.finish(process, "scheduler")
        running.end()


def together(trial: Trial) -> None:
    cache = str(trial.folder / "cache")
    both = {out: trial.start(out, "--cache", cache, "--jobs", "2") for out in ("first", "second")}
    for out, process in both.items():
        trial.finish(process, out)
    logs = "".join((trial.folder / out / "log.txt").read_text() for out in both)
    times = computed(logs)
    print(f"together: {len(times)} tasks, computed at most {max(times.values())} times in both commands")


# Hosts: a namespace of network and a namespace of mounts each, a bridge between them


class Hosts:
    NAMES = ("head", "a", "b", "desk")

    def __init__(self, trial: Trial) -> None:
        self.trial, self.address = trial, {name: f"10.77.0.{place}" for place, name in enumerate(self.NAMES, 1)}
        _ip("link add fpmc0 type bridge", "link set fpmc0 up")
        for name, address in self.address.items():
            _ip(f"netns add fpmc-{name}", f"link add v-{name} type veth peer name eth0 netns fpmc-{name}",
                f"link set v-{name} master fpmc0 up", f"-n fpmc-{name} addr add {address}/24 dev eth0",
                f"-n fpmc-{name} link set eth0 up", f"-n fpmc-{name} link set lo up")

    def on(self, name: str) -> list[str]:
        """What makes a command run on a host; all but the desk have an empty folder instead of the study's."""
        folder = self.trial.folder
        hide = "" if name == "desk" else f"mount -t tmpfs none {folder} && mkdir {folder}/home && "
        return ["ip", "netns", "exec", f"fpmc-{name}", "unshare", "-m", "sh", "-c", f'{hide}exec "$@"', "sh"]

    def cut(self, name: str) -> float:
        _ip(f"link set v-{name} down")
        return time.monotonic()

    def end(self) -> None:
        for name in self.NAMES:
            subprocess.run(["ip", "netns", "del", f"fpmc-{name}"], check=False)
        subprocess.run(["ip", "link", "del", "fpmc0"], check=False)


def _ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)


def hosts(trial: Trial) -> None:
    world, running = Hosts(trial), None
    try:
        for cut in ("b", "desk"):
            running = Running(trial, world.address["head"], world.on("head"))
            for name in ("a", "b"):
                running.worker(world.address[name], world.on(name))
            out = f"cut-{cut}"
            process = trial.start(out, "--cluster", running.address, prefix=world.on("desk"))
            while trial.done(out) < 2 and process.poll() is None:
                time.sleep(0.05)
            began, log = world.cut(cut), trial.folder / out / "log.txt"
            if cut == "b":
                while "a worker ended" not in log.read_text() and process.poll() is None:
                    time.sleep(0.1)
                trial.finish(process, out, noticed_after_seconds=round(time.monotonic() - began, 1))
            else:
                said, _ = process.communicate()
                print(f"{out}: exit code {process.returncode} after {time.monotonic() - began:.1f} s: "
                      f"{said.strip().splitlines()[-1]}", flush=True)
            running.end()
    finally:
        if running is not None:
            running.end()
        world.end()


def main() -> None:
    trials = {each.__name__: each for each in (sizes, kills, scheduler, together, hosts)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="+", choices=trials)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/fpmc-trials"))
    parser.add_argument("--seeds", type=int, default=64)
    options = parser.parse_args()
    for name in options.trials:
        folder = options.folder / f"{name}-{os.getpid()}"
        folder.mkdir(parents=True)
        trial = Trial(folder, options.seeds)
        trial.finish(trial.start("alone", "--alone"), "alone")
        trials[name](trial)


if __name__ == "__main__":
    main()
