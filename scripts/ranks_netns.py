"""Ranks on hosts of their own, made of network namespaces: equal answers, and a clear end when a link is cut.

    sudo python scripts/ranks_netns.py [--hosts 3] [--timeout 8]

Every host has an address and a folder that no other host sees, with its own copy of the data. First all hosts sample
together, and the samples of their first rank are compared with those of one process. Then the link of the last host
goes down in the middle of a longer run: every rank must end with exit code 2 and say why, within the timeout and some
seconds.
Needs root, `ip` and `unshare`; what it makes it removes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

BRIDGE, PORT = "fpmc-br", 29500
SLACK = 15                                              # seconds to start, to notice and to leave, on a busy machine
COMMAND = [
    "sample", "--data", "data.npy", "--denoiser", "pspc_square:schedule=3", "--batch", "4", "--outdir", "run",
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def network(hosts: int) -> Iterator[None]:
    """Hosts fpmc-0, fpmc-1, … at 10.77.0.1, 10.77.0.2, … on one bridge."""
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        for host in range(hosts):
            name, plug = f"fpmc-{host}", f"fpmc-v{host}"
            ip("netns", "add", name)
            ip("link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", plug, "master", BRIDGE, "up")
            ip("-n", name, "address", "add", f"10.77.0.{host + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        plugs = [["link", "delete", f"fpmc-v{host}"] for host in range(hosts)]
        rooms = [["netns", "delete", f"fpmc-{host}"] for host in range(hosts)]
        for each in (*plugs, *rooms, ["link", "delete", BRIDGE]):
            subprocess.run(["ip", *each], check=False, stderr=subprocess.DEVNULL)


def start(folder: Path, host: int, hosts: int, *words: str) -> subprocess.Popen:
    """A rank on its host, which sees its own folder as `own` and nothing of the others'."""
    settings = {
        "RANK": host, "LOCAL_RANK": 0, "WORLD_SIZE": hosts, "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": 1, "NUMBA_NUM_THREADS": 1,
        "FPMC_HOME": folder / "own" / "home", "TORCH_CPP_LOG_LEVEL": "ERROR",  # hosts without names are warned about
    }
    own = f"mount --bind {folder}/hosts/{host} {folder}/own && mount -t tmpfs none {folder}/hosts && cd {folder}/own"
    command = ["ip", "netns", "exec", f"fpmc-{host}", "unshare", "--mount", "sh", "-c", f'{own} && exec "$@"', "sh",
               sys.executable, "-m", "fpmc", *COMMAND, *words]
    environment = os.environ | {name: str(value) for name, value in settings.items()}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def equal_answers(folder: Path, hosts: int) -> None:
    words = ("--seeds", "0-4", "--steps", "5")
    one = folder / "one"
    one.mkdir()
    shutil.copy(folder / "hosts" / "0" / "data.npy", one)
    subprocess.run([sys.executable, "-m", "fpmc", *COMMAND, *words], check=True, cwd=one, stdout=subprocess.DEVNULL)
    ranks = [start(folder, host, hosts, *words) for host in range(hosts)]
    said = [rank.communicate() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank failed: {said}")
    ours, theirs = (np.load(place / "run" / "samples.npy") for place in (one, folder / "hosts" / "0"))
    print(f"{hosts} hosts: samples differ from one process by {abs(ours - theirs).max():.1e}; "
          f"said by the others: {[out + err for out, err in said[1:]]}")
    if abs(ours - theirs).max() > 1e-5 or any((folder / "hosts" / str(h) / "run").exists() for h in range(1, hosts)):
        raise SystemExit("the answers differ, or a rank has written that should not")


def cut_off(folder: Path, hosts: int, timeout: float) -> None:
    words = ("--seeds", "100-131", "--steps", "5000", "--timeout", str(timeout), "--outdir", "long")
    ranks = [start(folder, host, hosts, *words) for host in range(hosts)]
    state, began = folder / "hosts" / "0" / "long" / "unfinished.safetensors", time.monotonic()
    while not state.exists() and time.monotonic() < began + 120:               # until the first noise level is done
        time.sleep(0.2)
    ip("link", "set", f"fpmc-v{hosts - 1}", "down")
    cut = time.monotonic()
    for host, rank in enumerate(ranks):
        try:
            _, said = rank.communicate(timeout=max(1.0, cut + timeout + SLACK - time.monotonic()))
        except subprocess.TimeoutExpired:
            for each in ranks:
                each.kill()
            raise SystemExit(f"rank {host} hangs") from None
        print(f"rank {host} ended {time.monotonic() - cut:.1f} s after the cut with {rank.returncode}: "
              f"{said.strip().splitlines()[-1][:200] if said.strip() else ''}")
        if rank.returncode != 2 or "error:" not in said:
            raise SystemExit(f"rank {host} should have ended with exit code 2 and a reason; it said {said!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=8.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, network(options.hosts):
        folder = Path(place)
        pixels = np.random.default_rng(0).integers(0, 256, (100, 1, 8, 8), dtype=np.uint8)
        (folder / "own").mkdir()
        for host in range(options.hosts):
            (folder / "hosts" / str(host)).mkdir(parents=True)
            np.save(folder / "hosts" / str(host) / "data.npy", pixels)
        equal_answers(folder, options.hosts)
        cut_off(folder, options.hosts, options.timeout)


if __name__ == "__main__":
    main()
