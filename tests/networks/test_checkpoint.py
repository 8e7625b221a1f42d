"""Networks go to files and come back; files are told apart by content, and bad ones are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fpmc.cli import main
from fpmc.errors import InputError
from fpmc.networks import EDMPrecond, load_network, save_network
from fpmc.networks.config import infer_config
from fpmc.networks.training import Recipe, Training
from networks.edm_rules import ARCHITECTURES, TINY, golden_call, golden_network


def states_equal(a: Any, b: Any) -> bool:
    return a.state_dict().keys() == b.state_dict().keys() and all(
        torch.equal(value, b.state_dict()[key]) for key, value in a.state_dict().items()
    )


@pytest.mark.parametrize("name", TINY)
def test_float32_safetensors_are_the_network_itself(name: str, tmp_path: Path) -> None:
    net = golden_network(name)
    save_network(net, tmp_path / "any.name")
    again: Any = load_network(tmp_path / "any.name")
    assert states_equal(net, again)
    assert again.config == json.loads(json.dumps(net.config))
    assert again.shape == net.shape
    assert again.name == "any"
    assert not again.training
    assert not any(parameter.requires_grad for parameter in again.parameters())


def test_float16_safetensors_keep_answers_and_buffers(tmp_path: Path) -> None:
    net = golden_network("tiny-ve")
    save_network(net, tmp_path / "half.safetensors", dtype=torch.float16)
    save_network(net, tmp_path / "full.safetensors")
    half: Any = load_network(tmp_path / "half.safetensors")
    assert torch.equal(half.model.map_noise.freqs, net.model.map_noise.freqs)  # pyright: ignore
    assert half.model.map_layer0.weight.dtype == torch.float32
    z, sigma, _, answer = golden_call("tiny-ve")
    torch.testing.assert_close(half(z, sigma), answer, rtol=0, atol=5e-3)
    sizes = [(tmp_path / f"{kind}.safetensors").stat().st_size for kind in ("half", "full")]
    assert sizes[0] < 0.65 * sizes[1]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_settings_are_seen_in_names_and_shapes(name: str) -> None:
    with torch.device("meta"):
        state = EDMPrecond(**ARCHITECTURES[name]["config"]).state_dict()
        again = EDMPrecond(**infer_config(dict(sorted(state.items())), "a file")).state_dict()
    assert {k: v.shape for k, v in again.items()} == {k: v.shape for k, v in state.items()}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"state_dict": state, "epoch": 3}])
def test_bare_state_dicts_of_torch_load(zipped: bool, wrap: Any, tmp_path: Path) -> None:
    net = golden_network("tiny-ve")
    torch.save(wrap(net.state_dict()), tmp_path / "net.pt", _use_new_zipfile_serialization=zipped)
    assert states_equal(net, load_network(tmp_path / "net.pt"))


def test_a_bare_unet_in_safetensors(tmp_path: Path) -> None:
    net = golden_network("tiny-vp")
    save_file(net.model.state_dict(), tmp_path / "net.safetensors")
    assert states_equal(net, load_network(tmp_path / "net.safetensors"))


def test_a_training_checkpoint_gives_its_moving_average(tmp_path: Path) -> None:
    training = Training(golden_network("tiny-vp"), Recipe())
    with torch.no_grad():
        training.ema.model.map_layer0.bias += 1
    training.save(tmp_path / "checkpoint.pt")
    assert states_equal(training.ema, load_network(tmp_path / "checkpoint.pt"))


def test_what_can_be_called_is_taken_as_it_is() -> None:
    def halve(z: torch.Tensor, sigma: object) -> torch.Tensor:
        return z / 2

    module = golden_network("tiny-vp")
    assert load_network(halve) is halve
    assert load_network(module) is module


def test_files_that_are_no_networks_are_named(tmp_path: Path) -> None:
    net = golden_network("tiny-vp")
    whole = tmp_path / "net.safetensors"
    save_network(net, whole)
    cases = {
        "absent": None,
        "empty": b"",
        "picture": b"\x89PNG\r\n\x1a\n" + bytes(40),
        "cut": whole.read_bytes()[:-10],
        "header": whole.read_bytes().replace(b"img_resolution", b"img_revolution"),
        "zip": b"PK\x03\x04" + bytes(100),
    }
    for name, content in cases.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=name):
            load_network(path)
    torch.save({"ema": {"a": 1}}, tmp_path / "numbers.pt")
    with pytest.raises(InputError, match=r"numbers\.pt.*no state dict"):
        load_network(tmp_path / "numbers.pt")
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"other\.safetensors.*no DDPM"):
        load_network(tmp_path / "other.safetensors")


def test_weights_that_do_not_fit_their_settings_are_named(tmp_path: Path) -> None:
    state = golden_network("tiny-vp").state_dict()
    del state["model.map_layer1.bias"]
    torch.save(state, tmp_path / "net.pt")
    with pytest.raises(InputError, match=r"do not fit their configuration: Missing key.*map_layer1\.bias"):
        load_network(tmp_path / "net.pt")


def test_only_own_networks_and_float_types_are_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Linear"):
        save_network(torch.nn.Linear(1, 1), tmp_path / "a")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="int8"):
        save_network(golden_network("tiny-vp"), tmp_path / "a", dtype=torch.int8)
    assert list(tmp_path.iterdir()) == []


def test_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = golden_network("tiny-vp")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    assert main(["convert", str(tmp_path / "net.pt"), str(tmp_path / "net.safetensors"), "--dtype", "float16"]) == 0
    assert "48,275 parameters" in capsys.readouterr().out
    z, sigma, _, answer = golden_call("tiny-vp")
    torch.testing.assert_close(load_network(tmp_path / "net.safetensors")(z, sigma), answer, rtol=0, atol=5e-3)
    assert main(["convert", str(tmp_path / "net.pt"), str(tmp_path / "net.pkl")]) == 2
    assert main(["convert", str(tmp_path / "none.pt"), str(tmp_path / "none.safetensors")]) == 2
    assert not (tmp_path / "none.safetensors").exists()
