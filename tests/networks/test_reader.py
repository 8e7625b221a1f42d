"""EDM's pickles are read without executing anything; hostile ones end in one clear error."""

from __future__ import annotations

import io
import os
import pickle
import struct
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._utils import _rebuild_tensor_v2

from fpmc.errors import InputError
from fpmc.networks.checkpoint import load_network
from fpmc.networks.precond import EDMPrecond
from fpmc.networks.reader import read_edm_pickle
from networks.edm_pickle import edm_pickle
from networks.edm_rules import ARCHITECTURES, TINY, golden_call, golden_network

CONFIG = ARCHITECTURES["tiny-vp"]["config"]


@pytest.mark.parametrize(("name", "protocol"), [*((name, 4) for name in TINY), *(("tiny-ve", p) for p in (2, 3, 5))])
def test_a_checkpoint_in_edms_format_gives_edms_answers(name: str, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "net.pkl"
    config = ARCHITECTURES[name]["config"] | {"model_type": "SongUNet", "use_fp16": False}
    path.write_bytes(edm_pickle(golden_network(name), config, protocol=protocol))
    net: Any = load_network(path)
    z, sigma, labels, answer = golden_call(name)
    torch.testing.assert_close(net(z, sigma, labels), answer, rtol=1e-4, atol=1e-5)


def test_tensors_keep_offset_stride_and_type(tmp_path: Path) -> None:
    net = golden_network("tiny-vp")
    whole = torch.arange(2.0 * 3 * 8 * 9).reshape(2, 3, 8, 3, 3)
    odd = whole[1].transpose(0, 1)  # (8, 3, 3, 3): not contiguous, not at the start of its storage
    net.model.enc["16x16_conv"].weight = nn.Parameter(odd)
    net.model.map_layer0.bias.data = net.model.map_layer0.bias.data.half()
    (tmp_path / "net.pkl").write_bytes(edm_pickle(net, CONFIG))
    _, state = read_edm_pickle(tmp_path / "net.pkl")
    assert torch.equal(state["model.enc.16x16_conv.weight"], odd)
    assert state["model.map_layer0.bias"].dtype == torch.float16


class Call:
    """Pickles as a call of a function on arguments, with a state to set afterwards."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced


def tiny(**attributes: Any) -> EDMPrecond:
    net = golden_network("tiny-vp")
    for name, value in attributes.items():
        setattr(net, name, value)
    return net


def legacy(content: Any) -> bytes:
    """A torch file within the pickle, as storages are written."""
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def ones(count: int) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # typed storages are deprecated, and are what the files hold
        return legacy(torch.ones(count).storage())


def view(offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Call:
    storage = Call(torch.storage._load_from_bytes, ones(4))
    return Call(_rebuild_tensor_v2, storage, offset, size, stride, False, OrderedDict())


def module_bomb() -> EDMPrecond:
    module = nn.ModuleDict()
    for _ in range(60):  # 2^60 paths through 60 modules
        module = nn.ModuleDict({"a": module, "b": module})
    return tiny(bomb=module)


def hash_bomb() -> dict[Any, int]:
    key: Any = ()
    for _ in range(22):
        key = (key, key)
    return {key: 1}


def circle() -> EDMPrecond:
    module = nn.ModuleDict()
    module._modules["again"] = module
    return tiny(bomb=module)


CLEAN = edm_pickle(tiny(), CONFIG)
STORAGE = ones(1000)
# What each file asks for, as bytes made from a shell command that leaves a mark if it ever runs.
HOSTILE: dict[str, Callable[[str], bytes]] = {
    "os.system": lambda touch: pickle.dumps({"ema": Call(os.system, touch)}),
    "builtins.eval": lambda touch: pickle.dumps(Call(eval, f"__import__('os').system({touch!r})")),
    "builtins.exec, protocol 0": lambda touch: pickle.dumps(Call(exec, f"import os; os.system({touch!r})"), 0),
    "a call inside the network": lambda touch: edm_pickle(tiny(extra=Call(os.system, touch)), CONFIG),
    "a call as a known name's argument": lambda touch: pickle.dumps(Call(OrderedDict, Call(os.system, touch))),
    "a call in a state": lambda touch: pickle.dumps(Call(nn.ModuleDict, state={"_modules": Call(os.system, touch)})),
    "a chain of getattr": lambda touch: pickle.dumps(Call(getattr, Call(__import__, "os"), "system")),
    "a dotted name": lambda touch: b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.__init__\x93.",
    "a state for a function": lambda touch: b"\x80\x02ctorch._utils\n_rebuild_parameter\n}X\1\0\0\0aK\1sb.",
    "a state for a dict": lambda touch: pickle.dumps({"ema": Call(OrderedDict, state={"__setstate__": os.system})}),
    "instruction INST": lambda touch: f"(S'{touch}'\nios\nsystem\n.".encode(),
    "instruction OBJ": lambda touch: f"(cos\nsystem\nS'{touch}'\no.".encode(),
    "a persistent id": lambda touch: b"\x80\x02X\1\0\0\0aQ.",
    "an extension code": lambda touch: b"\x80\x02\x82\x01.",
    "a call inside a storage": lambda touch: pickle.dumps(
        Call(torch.storage._load_from_bytes, legacy(Call(os.system, touch)))
    ),
    "a module bomb": lambda touch: edm_pickle(module_bomb(), CONFIG),
    "a circle of modules": lambda touch: edm_pickle(circle(), CONFIG),
    "a hash bomb": lambda touch: pickle.dumps(hash_bomb()),
    "a storage read again and again": lambda touch: b"%b%b%b\x85q\x01R%b." % (
        b"\x80\x02ctorch.storage\n_load_from_bytes\nq\x00B",
        struct.pack("<I", len(STORAGE)),
        STORAGE,
        b"h\x00h\x01R" * 1000,
    ),
    "a vast tensor of few values": lambda touch: pickle.dumps(view(0, (10**6, 10**6), (0, 0))),
    "a tensor outside its storage": lambda touch: pickle.dumps(view(3, (2,), (1,))),
    "a tensor before its storage": lambda touch: pickle.dumps(view(-1, (2,), (1,))),
    "a vast string announced": lambda touch: b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
    "vast bytes announced": lambda touch: b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
    "a vast network": lambda touch: edm_pickle(tiny(), CONFIG | {"model_channels": 10**9}),
    "endless blocks": lambda touch: edm_pickle(tiny(), CONFIG | {"num_blocks": 10**12}),
    "settings of another network": lambda touch: edm_pickle(tiny(), CONFIG | {"model_channels": 16}),
    "unknown settings": lambda touch: edm_pickle(tiny(), CONFIG | {"magic": 1}),
    "another preconditioning": lambda touch: CLEAN.replace(b"\x0aEDMPrecond", b"\x0aVEVPrecond"),
    "no network": lambda touch: pickle.dumps({"ema": {"weights": 1}}),
    "truncated": lambda touch: CLEAN[: len(CLEAN) // 2],
    "one byte": lambda touch: CLEAN[:1],
    "an empty stack": lambda touch: b"\x80\x02.",
    "no mark": lambda touch: b"\x80\x02Kt.",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_execute_nothing_and_end_in_one_clear_error(kind: str, tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "net.pkl"
    path.write_bytes(HOSTILE[kind](f"touch {mark}"))
    with pytest.raises(InputError, match=r"net\.pkl") as error:
        load_network(path)
    assert not mark.exists()
    assert len(str(error.value)) < 500 + len(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "builtins.getattr", "posix.system"])
def test_what_is_refused_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "net.pkl").write_bytes(f"c{name.replace('.', chr(10))}\n.".encode())
    with pytest.raises(InputError, match=rf"asks for {name}; nothing in it was executed"):
        read_edm_pickle(tmp_path / "net.pkl")


def test_a_torch_file_with_a_call_is_refused_too(tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "net.pt"
    for zipped in (True, False):
        torch.save({"ema": Call(os.system, f"touch {mark}")}, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(InputError, match="refused"):
            load_network(path)
    assert not mark.exists()
