"""How long the explorer lets one wait: a hover, a click, a new noise level, asked of its server as the page does.

    python benchmarks/explorer.py                   # 50 of each on the embedded images; JSON

Targets on two cores, 12,000 images, 95th percentile: hover 50 ms, click 500 ms, a new σ for three denoisers 1 s.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import random
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import torch
from PIL import Image

import fpmc
from fpmc.explore import requests as ask
from fpmc.explore.path import GRID
from fpmc.explore.serve import running
from fpmc.explore.session import Session
from fpmc.networks import load_maps

TARGETS = {"hover": 0.05, "click": 0.5, "click, PSPC-Flex alone": 0.5, "new sigma, three denoisers": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--max_size", type=int, default=None)
    options = parser.parse_args()
    images = fpmc.load_images("fashion")
    images = images if options.max_size is None else images.subset(slice(options.max_size))
    maps = load_maps("fashion-ddpmpp")
    three = [fpmc.presets.pspc_flex(images, maps=maps), fpmc.presets.pspc_square(images), fpmc.presets.ls(images)]
    session = Session(three, images, maps=maps)
    dice = random.Random(0)
    with running(session) as address:
        client = Client(address)
        began = time.perf_counter()
        for denoiser in range(3):                       # a first strip: compiles, lays out, fills no cache of clicks
            client.post("path", {"denoiser": denoiser})
            session.shares(ask.WhichImages(denoiser=denoiser, level=12))
        first = time.perf_counter() - began
        client.upload(images.pixels[0, 0])
        found = {
            "hover": times(lambda k: client.post("pixel", hovered(dice, k)), options.repeats),
            "click": times(lambda k: client.post("shares", clicked(dice, k % 3)), options.repeats),
            "click, PSPC-Flex alone": times(lambda k: client.post("shares", clicked(dice, 0)), options.repeats),
            "new sigma, three denoisers": times(
                lambda k: client.new_level(10 ** dice.uniform(-1.5, 1.2), k), options.repeats
            ),
        }
    report = {
        "images": len(images), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "load": os.getloadavg()[0],
        "first strips and shares, seconds": round(first, 2),
        "seconds": {
            name: {"median": quantile(taken, 0.5), "p95": quantile(taken, 0.95), "target": TARGETS[name]}
            for name, taken in found.items()
        },
    }
    print(json.dumps(report, indent=2))


class Client:
    """Asks with the token, over one connection, and reads the whole answer."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.token = parse_qs(parts.query)["token"][0]
        self.port = parts.port
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port)

    def upload(self, pixels: torch.Tensor) -> None:
        """A picture of one's own, (H, W) bytes."""
        buffer = io.BytesIO()
        Image.fromarray(pixels.numpy()).save(buffer, "PNG")
        self.connection.request("POST", "/api/upload", buffer.getvalue(), {"x-fpmc-token": self.token})
        self.picture = json.loads(self.connection.getresponse().read())["picture"]

    def new_level(self, sigma: float, repeat: int) -> None:
        """The picture with noise of a σ nobody asked before: until three denoisers have answered, then hang up.

        As in the page, the paths that were begun go on until newer ones overtake them.
        """
        own = {"picture": self.picture, "sigma": sigma, "noise": True}
        streams = []
        for denoiser in range(3):
            stream = http.client.HTTPConnection("127.0.0.1", self.port)
            headers = {"x-fpmc-token": self.token, "x-channel": f"path{denoiser}", "x-sequence": str(repeat)}
            stream.request("POST", "/api/path", json.dumps({"denoiser": denoiser, "start": {"own": own}}), headers)
            streams.append(stream)
        for stream in streams:
            if b'"x"' not in stream.getresponse().readline():
                raise RuntimeError("no answer")
        for stream in streams:
            stream.close()

    def post(self, kind: str, body: dict) -> None:
        self.connection.request("POST", f"/api/{kind}", json.dumps(body), {"x-fpmc-token": self.token})
        response = self.connection.getresponse()
        text = response.read()
        if response.status != 200 or b'"error"' in text:
            raise RuntimeError(text.decode())


def hovered(dice: random.Random, repeat: int) -> dict:
    return {"denoiser": repeat % 3, "sigma": dice.choice(GRID[4:-1]), "y": dice.randrange(28), "x": dice.randrange(28)}


def clicked(dice: random.Random, denoiser: int) -> dict:
    """A pixel nobody has asked about, of a strip that is there."""
    y, x = dice.randrange(28), dice.randrange(28)
    return {"denoiser": denoiser, "level": dice.randrange(6, 18), "region": [y, x, y, x]}


def times(call: Callable[[int], object], repeats: int) -> list[float]:
    taken = []
    for repeat in range(repeats):
        began = time.perf_counter()
        call(repeat)
        taken.append(time.perf_counter() - began)
    return taken


def quantile(taken: list[float], share: float) -> float:
    return round(sorted(taken)[min(len(taken) - 1, int(share * len(taken)))], 4)


if __name__ == "__main__":
    main()
