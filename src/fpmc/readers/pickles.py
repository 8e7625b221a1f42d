"""A pickle machine without calls.

A pickle is a program for a small stack machine, and the standard library's machine calls whatever the file names. The
one here has no call at all: a name is looked up in the table of the few things that the kind of file at hand is made
of, each rebuilt as a tensor, a number or an inert record; any other name is an error before it means anything.
`pickletools` decodes the instructions, `HANDLERS` says what each may do.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from fpmc.errors import InputError, in_short

MOST_OPCODES = 5_000_000    # a published checkpoint has some 50,000
LONGEST_LINE = 4096         # of the text opcodes, which hardly anything writes


class Refused(InputError):
    """Something that no file of this kind holds."""


@dataclass
class Record:
    """An object of the file, by class name and state; it has no behaviour."""

    name: str
    state: Any = None


@dataclass(frozen=True)
class Name:
    """A class or function that the file mentions."""

    text: str


class Bounded:
    """A file that never allocates for bytes it does not have, and that counts what is made of its bytes."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.size, self.spent = file, size, 0

    def read(self, count: int) -> bytes:
        if not 0 <= count <= self.size - self.file.tell():
            raise Refused("it ends too early, or announces more than it holds")
        return self.file.read(count)

    def readline(self) -> bytes:
        return self.file.readline(LONGEST_LINE)

    def spend(self, content: Sized | int) -> None:
        """Each byte becomes data once or twice: a short file cannot ask for its longest string a million times."""
        self.spent += content if isinstance(content, int) else len(content)
        if self.spent > 2 * self.size:
            raise Refused("what it describes is larger than itself")


Maker = Callable[..., Any]  # called with the file and the arguments it gives


def interpret(source: Bounded, makers: Mapping[str, Maker], persistent: Callable[[Any], Any] | None = None) -> Any:
    """What a pickle describes, made of `makers` alone; `persistent` finds the objects that it keeps elsewhere."""
    machine = _Machine(source, makers, persistent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of odd escapes in texts
        return _run(machine)


def _run(machine: _Machine) -> Any:
    try:
        instructions: Any = pickletools.genops(machine.source)  # pyright: ignore[reportArgumentType]
        for count, (opcode, argument, _) in enumerate(instructions):
            if count > MOST_OPCODES:
                raise Refused(f"it has more than {MOST_OPCODES:,} instructions")
            if opcode.name == "STOP":
                return machine.stack.pop()
            if opcode.name in VALUES:
                machine.stack.append(argument)
            elif opcode.name in HANDLERS:
                HANDLERS[opcode.name](machine, opcode.name, argument)
            else:
                raise Refused(f"it uses the pickle instruction {opcode.name}, which no such file needs")
    except Refused:
        raise
    except Exception as error:  # empty stacks, missing marks, texts that are no numbers
        raise Refused(f"it is damaged, {in_short(error)}") from error
    raise Refused("it ends too early")


def expect(value: Any, *kinds: type) -> Any:
    """The value, if it is exactly of one of these types."""
    if type(value) not in kinds:
        raise Refused(f"it has {type(value).__name__} where {' or '.join(kind.__name__ for kind in kinds)} belongs")
    return value


def key(value: Any) -> str | int | float | bytes:
    """A key of a dict or a member of a set; hashing nested tuples can take for ever."""
    return expect(value, str, int, float, bytes)


class _Machine:
    def __init__(self, source: Bounded, makers: Mapping[str, Maker], persistent: Callable[[Any], Any] | None) -> None:
        self.source, self.makers, self.persistent = source, makers, persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def constant(self, name: str, _: Any) -> None:
        makes: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
        fixed = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
        self.stack.append(makes[name]() if name in makes else fixed[name])

    def mark(self, name: str, _: Any) -> None:
        if name == "MARK":
            self.marks.append(len(self.stack))
        elif name == "POP_MARK":
            self.since_mark()
        else:
            self.stack.pop()

    def remember(self, name: str, argument: Any) -> None:
        if name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name.endswith("PUT"):
            self.memo[int(argument)] = self.stack[-1]
        else:
            self.stack.append(self.memo[int(argument)])

    def collect(self, name: str, _: Any) -> None:
        """Tuples and lists of what lies on the stack."""
        if name[-1].isdecimal():
            start = len(self.stack) - int(name[-1])
            if start < 0:
                raise Refused("it is damaged, its stack is empty")
            self.stack[start:] = [tuple(self.stack[start:])]
        else:
            items = self.since_mark()
            self.stack.append(tuple(items) if name == "TUPLE" else items)

    def extend(self, name: str, _: Any) -> None:
        items = [self.stack.pop()] if name == "APPEND" else self.since_mark()
        if name == "ADDITEMS":
            expect(self.stack[-1], set).update(map(key, items))
        else:
            expect(self.stack[-1], list).extend(items)

    def pairs(self, name: str, _: Any) -> None:
        if name == "SETITEM":
            self.marks.append(len(self.stack) - 2)
        items = self.since_mark()
        if name == "DICT":
            self.stack.append({})
        found = zip(items[::2], items[1::2], strict=True)
        expect(self.stack[-1], dict).update({key(one): value for one, value in found})

    def named(self, name: str, argument: Any) -> None:
        if name == "GLOBAL":
            module, _, member = argument.partition(" ")
        else:
            member, module = expect(self.stack.pop(), str), expect(self.stack.pop(), str)
        if f"{module}.{member}" not in self.makers:
            raise Refused(f"it asks for {module}.{member}"[:200])
        self.stack.append(Name(f"{module}.{member}"))

    def make(self, name: str, _: Any) -> None:
        arguments, maker = expect(self.stack.pop(), tuple), expect(self.stack.pop(), Name).text
        self.stack.append(self.makers[maker](self.source, *arguments))

    def build(self, name: str, _: Any) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, np.dtype):  # (version, byte order, …)
            order = expect(state, tuple)[1]
            order = order.decode("latin1") if isinstance(order, bytes) else order
            self.stack[-1] = target.newbyteorder(order if order in ("<", ">") else "=")
        elif type(target) is dict:  # an ordered dict's attributes; torch puts the versions of modules there
            expect(state, dict)
        else:
            expect(target, Record).state = expect(state, dict, tuple)

    def find(self, name: str, _: Any) -> None:
        if self.persistent is None:
            raise Refused("it speaks of objects that are kept elsewhere")
        self.stack.append(self.persistent(self.stack.pop()))


def make_bytes(source: Bounded, text: Any, encoding: Any = "latin1") -> bytes:
    """`_codecs.encode`: how Python 3 writes bytes in old protocols."""
    source.spend(expect(text, str))
    if expect(encoding, str, bytes) not in ("latin1", b"latin1"):
        raise Refused("it asks for an encoding that no such file needs")
    return text.encode("latin1")


def make_dtype(source: Bounded, code: Any, *rest: Any) -> np.dtype[Any]:
    """`numpy.dtype` of one plain number."""
    code = code.decode("latin1") if isinstance(code, bytes) else code
    if expect(code, str) not in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"):
        raise Refused(f"it asks for the NumPy type {code[:20]!r}")
    return np.dtype(code)


# The opcodes whose argument is the value itself.
VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
HANDLERS: dict[str, Callable[[_Machine, str, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, name, argument: None),
    **dict.fromkeys(("NONE", "NEWTRUE", "NEWFALSE"), _Machine.constant),
    **dict.fromkeys(("EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"), _Machine.constant),
    **dict.fromkeys(("MARK", "POP", "POP_MARK"), _Machine.mark),
    **dict.fromkeys(("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"), _Machine.remember),
    **dict.fromkeys(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST"), _Machine.collect),
    **dict.fromkeys(("APPEND", "APPENDS", "ADDITEMS"), _Machine.extend),
    **dict.fromkeys(("DICT", "SETITEM", "SETITEMS"), _Machine.pairs),
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), _Machine.named),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _Machine.make),
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.find,
}
