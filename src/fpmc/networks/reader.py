"""Read EDM's `.pkl` checkpoints without executing anything.

A pickle is a program for a small stack machine, and the standard library's machine calls whatever the file names. The
one here has no call at all: a name is looked up in the table `MAKERS` of the few things an EDM checkpoint is made of,
each rebuilt as a tensor, a number or an inert record; any other name is an error before it means anything. The Python
source inside the file is never looked at.
"""

from __future__ import annotations

import io
import math
import os
import pickletools
import warnings
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from fpmc.errors import InputError

MOST_OPCODES = 5_000_000    # a published checkpoint has some 50,000
MOST_ENTRIES = 100_000      # modules, parameters and buffers of one network
LONGEST_NAME = 500          # of a parameter, with those of the modules around it
LONGEST_LINE = 4096         # of the text opcodes, which torch hardly writes


class Refused(Exception):
    """Something that no network checkpoint holds."""


@dataclass
class Record:
    """An object of the file, by class name and attributes; it has no behaviour."""

    name: str
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Name:
    """A class or function that the file mentions."""

    text: str


def read_edm_pickle(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The network `ema` of an EDM checkpoint: constructor settings of `EDMPrecond`, and its state by name."""
    try:
        with open(path, "rb") as file:
            content = _interpret(_Bounded(file))
        net = content.get("ema") if isinstance(content, dict) else content
        if not isinstance(net, Record) or net.name != "EDMPrecond":
            found = net.name if isinstance(net, Record) else type(net).__name__
            raise Refused(f"its network is {found}; only EDM's preconditioning (EDMPrecond) can be read")
        settings = net.state.get("_init_kwargs")
        if net.state.get("_init_args") or not isinstance(settings, dict):
            raise Refused("its constructor settings (_init_kwargs) are missing")
        return settings, _state(net)
    except OSError as error:
        raise InputError(f"cannot read {os.fspath(path)!r}: {error.strerror}") from error
    except (Refused, ValueError, TypeError, LookupError, OverflowError, RuntimeError, MemoryError) as error:
        why = f"{error if isinstance(error, Refused) else f'it is damaged, {error}'}"[:200]
        raise InputError(f"{os.fspath(path)!r} is refused: {why}; nothing in it was executed") from error


def _state(net: Record) -> dict[str, Tensor]:
    """Parameters and buffers by dotted name, as `state_dict` has them."""
    state: dict[str, Tensor] = {}
    count, pending = 0, [("", net)]
    while pending:
        prefix, module = pending.pop()
        for kind, wanted in (("_parameters", Tensor), ("_buffers", Tensor), ("_modules", Record)):
            for name, value in _expect(module.state.get(kind, {}), dict).items():
                count += 1
                path = f"{prefix}{_expect(name, str)}"
                if count > MOST_ENTRIES or len(path) > LONGEST_NAME:  # modules may hold each other, in circles
                    raise Refused("its modules have no end")
                if value is not None and type(value) is not wanted:
                    raise Refused(f"{path} is {type(value).__name__}, not one of its {kind}")
                if isinstance(value, Record):
                    pending.append((f"{path}.", value))
                elif value is not None:
                    state[path] = value
    return state


class _Bounded:
    """A file that never allocates for bytes it does not have, and that counts what is made of its bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.spent = 0

    def read(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise Refused("it ends too early, or announces more than it holds")
        return self.file.read(count)

    def readline(self) -> bytes:
        return self.file.readline(LONGEST_LINE)

    def spend(self, content: Sized) -> None:
        """Each byte becomes data once or twice: a short file cannot ask for its longest string a million times."""
        self.spent += len(content)
        if self.spent > 2 * self.size:
            raise Refused("what it describes is larger than itself")


def _interpret(source: _Bounded) -> Any:
    """Run the pickle machine, less its calls; `pickletools` decodes the opcodes, the cases say what each may do."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    instructions: Any = pickletools.genops(source)  # pyright: ignore[reportArgumentType]
    for count, (opcode, argument, _) in enumerate(instructions):
        if count > MOST_OPCODES:
            raise Refused(f"it has more than {MOST_OPCODES:,} instructions")
        match opcode.name:
            case name if name in VALUES:
                stack.append(argument)
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
            case "MARK":
                marks.append(len(stack))
            case "POP":
                stack.pop()
            case "POP_MARK":
                since_mark()
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[int(argument)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[int(argument)])
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                start = len(stack) - {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}[opcode.name]
                stack[start:] = [tuple(stack[start:])]
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_SET":
                stack.append(set())
            case "LIST":
                stack.append(since_mark())
            case "APPEND":
                item = stack.pop()
                _expect(stack[-1], list).append(item)
            case "APPENDS":
                items = since_mark()
                _expect(stack[-1], list).extend(items)
            case "ADDITEMS":
                items = since_mark()
                _expect(stack[-1], set).update(_key(item) for item in items)
            case "DICT" | "SETITEM" | "SETITEMS":
                if opcode.name == "SETITEM":
                    marks.append(len(stack) - 2)
                items = since_mark()
                if opcode.name == "DICT":
                    stack.append({})
                pairs = zip(items[::2], items[1::2], strict=True)
                _expect(stack[-1], dict).update({_key(key): value for key, value in pairs})
            case "GLOBAL" | "STACK_GLOBAL":
                if opcode.name == "GLOBAL":
                    module, _, name = argument.partition(" ")
                else:
                    name, module = _expect(stack.pop(), str), _expect(stack.pop(), str)
                if f"{module}.{name}" not in MAKERS:
                    raise Refused(f"it asks for {module}.{name}")
                stack.append(Name(f"{module}.{name}"))
            case "REDUCE" | "NEWOBJ":
                arguments, name = _expect(stack.pop(), tuple), _expect(stack.pop(), Name).text
                stack.append(MAKERS[name](source, *arguments))
            case "BUILD":
                state = stack.pop()
                stack[-1] = _build(stack[-1], state)
            case name:
                raise Refused(f"it uses the pickle instruction {name}, which no network needs")
    raise Refused("it ends too early")


def _expect(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise Refused(f"it has {type(value).__name__} where {' or '.join(kind.__name__ for kind in kinds)} belongs")
    return value


def _key(value: Any) -> str | int | float:
    return _expect(value, str, int, float)  # hashing nested tuples can take for ever


def _build(target: Any, state: Any) -> Any:
    if isinstance(target, np.dtype):  # (version, byte order, …)
        order = _expect(state, tuple)[1]
        return target.newbyteorder(order if order in ("<", ">") else "=")
    _expect(target, Record).state = _expect(state, dict)
    return target


# The makers: what a checkpoint is made of, from the arguments the file gives.


def _persistent(source: _Bounded, meta: Any) -> Record:
    meta = _expect(meta, dict)
    return Record(_expect(meta.get("class_name"), str), _expect(meta.get("state"), dict))


def _storage(source: _Bounded, content: Any) -> torch.TypedStorage:
    source.spend(_expect(content, bytes))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
            loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch fails in many ways on bytes that are not its own
        raise Refused("the values of one of its tensors cannot be read") from error
    return _expect(loaded, torch.TypedStorage)


def _tensor(source: _Bounded, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Tensor:
    values = torch.empty(0, dtype=_expect(storage, torch.TypedStorage).dtype).set_(storage.untyped())  # pyright: ignore
    whole = [_expect(n, int) for n in (offset, *_expect(size, tuple), *_expect(stride, tuple))]
    if min(whole) < 0 or math.prod(size) > values.numel():  # strides of 0 make a tensor of any size from one value
        raise Refused(f"a tensor of size {size} does not fit its values")
    return values.as_strided(size, stride, offset)


def _parameter(source: _Bounded, data: Any, *rest: Any) -> Tensor:
    return _expect(data, Tensor)


def _bytes(source: _Bounded, text: Any, encoding: Any) -> bytes:
    source.spend(_expect(text, str))
    if _expect(encoding, str) != "latin1":
        raise Refused(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


def _set(source: _Bounded, items: Any) -> set[str | int | float]:
    source.spend(_expect(items, list))
    return {_key(item) for item in items}


def _dtype(source: _Bounded, code: Any, *rest: Any) -> np.dtype[Any]:
    if _expect(code, str) not in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"):
        raise Refused(f"it asks for the NumPy type {code!r}")
    return np.dtype(code)


def _scalar(source: _Bounded, dtype: Any, content: Any) -> bool | int | float:
    if not isinstance(dtype, np.dtype):
        raise Refused("one of its NumPy numbers has no type")
    return np.frombuffer(_expect(content, bytes), dtype, count=1)[0].item()


MAKERS: dict[str, Callable[..., Any]] = {
    "torch_utils.persistence._reconstruct_persistent_obj": _persistent,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.storage._load_from_bytes": _storage,
    "torch.nn.modules.container.ModuleDict": lambda source: Record("ModuleDict"),
    "collections.OrderedDict": lambda source: {},
    "dnnlib.util.EasyDict": lambda source: {},
    "builtins.set": _set,
    "__builtin__.set": _set,
    "numpy.dtype": _dtype,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    "_codecs.encode": _bytes,
}

# The opcodes whose argument is the value itself.
VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
