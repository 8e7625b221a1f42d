"""Wrong commands: exit code 2 and one line on stderr that names what was received, nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fpmc.cli import main

WRONG: list[tuple[str, str]] = [
    ("sampel", "'sampel'.*'sample'"),
    ("sample --seeds x", "'x'"),
    ("sample --seeds 5-2", "'5-2'"),
    ("sample --seeds 3,3", "3 is given twice"),
    ("sample --seeds -1", "-1"),
    ("sample --steps 0", "0"),
    ("sample --batch 0", "batch.*0"),
    ("sample --sigma_min 0", "0"),
    ("sample --sigma_max -1", "-1"),
    ("sample --rho 0", "0"),
    ("sample --solver rk4", "rk4|solver"),
    ("sample --denoiser lss", "'lss'"),
    ("sample --denoiser ls:schedule=4", "4.*odd"),
    ("sample --denoiser ls:size=3", "size"),
    ("sample --denoiser lukoianov:tau=7", "7"),
    ("sample --denoiser nowhere.safetensors", "nowhere"),
    ("sample --class 3", "3.*no classes"),
    ("sample --class cat", "'cat'"),
    ("sample --data nowhere", "'nowhere'"),
    ("sample --max_size 0", "0"),
    ("sample --augment flip", "'flip'"),
    ("sample --augment rotate:amount", "'amount'"),
    ("sample --device cuda:9", "device 'cuda:9'.*use cpu"),
    ("sample --device quantum", "'quantum'.*cpu"),
    ("sample --speed 3", "--speed"),
    ("denoise --sigmas 0", "0"),
    ("denoise --sigmas -1", "-1"),
    ("denoise --sigmas 1 --levels 3", "not both"),
    ("denoise --levels 99", "99|0 to"),
    ("denoise --levels x", "'x'"),
    ("denoise --count 0", "0"),
    ("denoise --seed -1", "-1"),
    ("denoise nowhere.png", "nowhere.png"),
    ("denoise --input nowhere", "'nowhere'"),
    ("evaluate data.npy", "nothing to judge"),
    ("evaluate nowhere data.npy", "'nowhere'"),
    ("evaluate data.npy data.npy data.npy", "given twice"),
    ("explain --sigmas 0", "0"),
    ("train --batch 0", "0"),
    ("train --rate -1", "-1"),
    ("train --images 0", "0"),
    ("train --mults 1 --init nowhere.pt", "nowhere.pt"),
    ("train --held_out nowhere", "'nowhere'"),
    ("train --conditional", "labels"),
    ("train --device gpu", "'gpu'.*cpu"),
    ("convert nowhere.pkl x.safetensors", "nowhere.pkl"),
    ("convert nowhere.pkl x.pt", "x.pt.*.safetensors"),
    ("convert data.npy x.safetensors", "data.npy"),
    ("maps --network nowhere", "'nowhere'"),
    ("maps --draws 0", "0"),
    ("maps --sigmas 0", "0"),
    ("calibrate --network nowhere", "'nowhere'"),
    ("calibrate --sigmas 0", "network|0"),
    ("finetune --jobs 0", "jobs 0"),
    ("finetune --threads 0", "threads 0"),
    ("finetune --denoiser nowhere", "'nowhere'"),
    ("finetune --network nowhere", "'nowhere'"),
    ("fit --target dirty", "'dirty'"),
    ("fit --count 3 --sigmas 1", "count 3"),
    ("fit --sizes 3 --shape square ls", "--shape"),
    ("fit --sizes 99 --sigmas 1", "99"),
    ("reproduce tabel1", "'tabel1'|table1"),
    ("reproduce", "at least one experiment"),
    ("reproduce table1 --jobs 0", "jobs 0"),
    ("reproduce table1 --points 1", "points 1"),
    ("attribute --top 0", "0"),
    ("attribute --pixel 99 0", "99"),
    ("attribute --seed -1", "-1"),
    ("attribute --sigma 0", "0"),
    ("attribute --input nowhere.png", "nowhere.png"),
    ("explore --denoiser nowhere --export x.html", "'nowhere'"),
    ("explore --network nowhere --export x.html", "'nowhere'"),
    ("bench --batch 0", "batch.*0"),
    ("bench --repeats 0", "repeats.*0"),
    ("bench --sigmas 0", "0"),
    ("data info nowhere", "'nowhere'"),
    ("data pack data.npy x.tar", "x.tar|zip"),
    ("data pack nowhere x.zip", "'nowhere'"),
    ("data augment data.npy x.zip --kind flip", "'flip'"),
    ("data augment data.npy x.zip --kind rotate --amount -1", "-1"),
]
WITH_DATA = ("sample", "denoise", "train", "maps", "calibrate", "finetune", "fit", "reproduce", "attribute", "explore",
             "bench", "explain")


@pytest.mark.parametrize(("line", "says"), WRONG)
def test_wrong_commands(line, says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("data.npy", np.random.default_rng(0).integers(0, 256, (20, 1, 6, 6), dtype=np.uint8))
    args = line.split()
    if args[0] in WITH_DATA and "--data" not in args:
        args += ["--data", "data.npy"]
    if args[0] == "train" and "--held_out" not in args:
        args += ["--held_out", "data.npy"]
    code = main(args)
    out, err = capsys.readouterr()
    assert code == 2, err
    assert "Traceback" not in out + err
    assert re.search(says, err), err
    if args[1:2] not in (["--solver"], ["--speed"]):    # of which the parser tells, in a frame
        assert err.startswith("fpmc: error: ")
        assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"data.npy", *(["runs"] if args[0] == "fit" else [])}
