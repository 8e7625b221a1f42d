"""A vector of float32 for numba: `LANES` images side by side, held in registers.

Numba vectorises inner loops only where it can prove that arrays do not overlap; with a vector type there is nothing to
prove. LLVM maps it onto whatever the processor has.
"""

from __future__ import annotations

import math
import operator

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.core import cgutils, config
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic, models, overload, register_model

from fpmc.engine.simd import LANES, NEGLIGIBLE

FAST = {"reassoc", "contract", "arcp", "nsz", "nnan", "ninf"}
KERNEL = {"nogil": True, "cache": True, "fastmath": FAST, "error_model": "numpy"}
INLINE = {**KERNEL, "forceinline": True}                # arrays are costly to hand over for one row
_told = config.CPU_NAME is not None or config.CPU_FEATURES is not None          # by NUMBA_CPU_NAME, NUMBA_CPU_FEATURES
# registers for eight sums at a time; else there are for four
WIDE = "+avx512f" in (config.CPU_FEATURES or "") if _told else bool(get_host_cpu_features().get("avx512f"))
CENTRE = 127.5                                          # of bytes: what is taken from them, exact in float32
LOWEST = math.log(NEGLIGIBLE)                           # e^x is 0 below: products with it would be denormal, so slow

_FLAGS = ("contract", "nsz", "nnan", "ninf")
_REDUCE = ("reassoc", *_FLAGS)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTEGERS = ir.VectorType(ir.IntType(32), LANES)
_BYTES = ir.VectorType(ir.IntType(8), LANES)


class Vector(types.Type):
    """`LANES` floats."""

    def __init__(self) -> None:
        super().__init__(name=f"Vector({LANES})")


VECTOR = Vector()


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, fe_type) -> None:
        super().__init__(manager, fe_type, _FLOATS)


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [ir.Constant(ir.FloatType(), value)] * LANES)


def _splat(builder, value):
    return builder.shuffle_vector(
        builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)),
        ir.Constant(_FLOATS, ir.Undefined),
        ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES),
    )


def elements_of(context, builder, array_type, array):
    """Where the elements of an array begin, which must be side by side: what is loaded here knows of no strides."""
    if array_type.layout != "C":
        raise NumbaTypeError(f"vectors are loaded from arrays whose elements are side by side, not from {array_type}")
    return cgutils.create_struct_proxy(array_type)(context, builder, array).data


def _pointer(context, builder, array_type, array, index, kind):
    """The address of `LANES` consecutive elements of a flat array, from `index` rows of `LANES` on."""
    data = elements_of(context, builder, array_type, array)
    offset = builder.mul(index, ir.Constant(index.type, LANES))
    return builder.bitcast(builder.gep(data, [offset]), kind.as_pointer())


@intrinsic
def load(context, array, row):
    """Row `row` of a flat float32 array of `LANES` columns."""
    def generate(context, builder, signature, args):
        value = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], _FLOATS))
        value.align = 4
        return value

    return VECTOR(array, types.intp), generate


@intrinsic
def entry(context, array, index):
    """array[index] for an index that is not negative: numba would look, at a third of the cost of a sparse sum."""
    def generate(context, builder, signature, args):
        data = elements_of(context, builder, signature.args[0], args[0])
        return builder.load(builder.gep(data, [args[1]]))

    return array.dtype(array, types.intp), generate


def _loader(centre: float):
    @intrinsic
    def load_some(context, array, row):
        def generate(context, builder, signature, args):
            kind = _FLOATS if signature.args[0].dtype == types.float32 else _BYTES
            value = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], kind))
            value.align = 4 if kind is _FLOATS else 1
            if kind is _FLOATS:
                return value
            value = builder.sitofp(builder.zext(value, _INTEGERS), _FLOATS)
            return builder.fsub(value, _constant(centre)) if centre else value

        return VECTOR(array, types.intp), generate

    return load_some


load_pixels = _loader(CENTRE)                           # a row of a flat array: floats as they are, bytes as u − CENTRE
load_as_is = _loader(0.0)                               # bytes as u


@intrinsic
def transpose_bytes(context, source, start, pitch, target, row):
    """`LANES`×`LANES` bytes of a flat array, rows `pitch` apart from `start` on, to rows from `row` on, transposed.

    Rows i and i + LANES/2 interleaved, four times over, are the transpose of 16 rows of 16.
    """
    def generate(context, builder, signature, args):
        data = elements_of(context, builder, signature.args[0], args[0])
        rows = []
        for i in range(LANES):
            offset = builder.add(args[1], builder.mul(args[2], ir.Constant(args[2].type, i)))
            value = builder.load(builder.bitcast(builder.gep(data, [offset]), _BYTES.as_pointer()))
            value.align = 1
            rows.append(value)
        half = LANES // 2
        for _ in range(LANES.bit_length() - 1):
            woven = []
            for a, b in zip(rows[:half], rows[half:]):
                for first in (0, half):
                    mask = [place for i in range(first, first + half) for place in (i, i + LANES)]
                    woven.append(builder.shuffle_vector(a, b, ir.Constant(_INTEGERS, mask)))
            rows = woven
        for i, value in enumerate(rows):
            index = builder.add(args[4], ir.Constant(args[4].type, i))
            builder.store(value, _pointer(context, builder, signature.args[3], args[3], index, _BYTES)).align = 1
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp), generate


@intrinsic
def store(context, array, row, value):
    """Write row `row` of a flat float32 array of `LANES` columns."""
    def generate(context, builder, signature, args):
        builder.store(args[2], _pointer(context, builder, signature.args[0], args[0], args[1], _FLOATS)).align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, VECTOR), generate


@intrinsic
def splat(context, value):
    """The same number in every lane."""
    def generate(context, builder, signature, args):
        return _splat(builder, args[0])

    return VECTOR(types.float32), generate


def _binary(name: str):
    @intrinsic
    def operation(context, a, b):
        def generate(context, builder, signature, args):
            return getattr(builder, name)(args[0], args[1], flags=_FLAGS)

        return VECTOR(VECTOR, VECTOR), generate

    return operation


_add, _sub, _mul = _binary("fadd"), _binary("fsub"), _binary("fmul")


def _overload(function, implementation) -> None:
    @overload(function, inline="always")
    def _(a, b):
        if isinstance(a, Vector) and isinstance(b, Vector):
            return lambda a, b: implementation(a, b)
        return None


_overload(operator.add, _add)
_overload(operator.sub, _sub)
_overload(operator.mul, _mul)


def _either(order: str):
    @intrinsic
    def choose(context, a, b):
        def generate(context, builder, signature, args):
            return builder.select(builder.fcmp_ordered(order, args[0], args[1], flags=_FLAGS), args[0], args[1])

        return VECTOR(VECTOR, VECTOR), generate

    return choose


larger, smaller = _either(">"), _either("<")           # of two, lane by lane


def _reduction(name: str, start: float | None):
    @intrinsic
    def reduce(context, a):
        def generate(context, builder, signature, args):
            first = [] if start is None else [ir.Constant(ir.FloatType(), start)]
            kind = ir.FunctionType(ir.FloatType(), [*(value.type for value in first), _FLOATS])
            function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.{name}.v{LANES}f32")
            return builder.call(function, [*first, args[0]], fastmath=_REDUCE)

        return types.float32(VECTOR), generate

    return reduce


total = _reduction("fadd", 0.0)
largest = _reduction("fmax", None)


@intrinsic
def add_totals(context, array, index, a, b, c, d):
    """array[index + i] += the sum of the i-th vector's lanes, i < 4: together at less than the cost of two `total`s."""
    def generate(context, builder, signature, args):
        def pick(x, y, places):
            return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places))

        def fold(x, y, first, second):
            return builder.fadd(pick(x, y, first), pick(x, y, second), flags=_FLAGS)

        def four(vector):                               # its lanes as four partial sums
            while vector.type.count > 4:
                half = vector.type.count // 2
                vector = fold(vector, vector, [*range(half)], [*range(half, 2 * half)])
            return vector

        ab, cd = (fold(four(x), four(y), [0, 1, 4, 5], [2, 3, 6, 7]) for x, y in (args[2:4], args[4:6]))
        sums = fold(ab, cd, [0, 2, 4, 6], [1, 3, 5, 7])
        data = elements_of(context, builder, signature.args[0], args[0])
        place = builder.bitcast(builder.gep(data, [args[1]]), sums.type.as_pointer())
        before = builder.load(place)
        before.align = 4
        builder.store(builder.fadd(before, sums, flags=_FLAGS), place).align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, VECTOR, VECTOR, VECTOR, VECTOR), generate


@intrinsic
def exp(context, x):
    """e^x for x ≤ 0, lane by lane, to 2e-7 relative; 0 below `LOWEST`.

    x = n ln 2 + t with |t| ≤ ln 2 / 2; a polynomial for e^t − 1 − t, and n goes into the exponent.
    """
    def generate(context, builder, signature, args):
        def times_plus(a, b, c):
            return builder.fadd(builder.fmul(a, b, flags=_FLAGS), c, flags=_FLAGS)

        low = _constant(LOWEST)
        counts = builder.fcmp_ordered(">", args[0], low, flags=_FLAGS)
        x = builder.select(counts, args[0], low)
        n = builder.fptosi(times_plus(x, _constant(1.4426950408889634), _constant(-0.5)), _INTEGERS)
        f = builder.sitofp(n, _FLOATS)
        t = times_plus(f, _constant(-0.693359375), x)
        t = times_plus(f, _constant(2.12194440e-4), t)
        p = _constant(1.9875691500e-4)
        for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            p = times_plus(p, t, _constant(c))
        p = builder.fadd(times_plus(builder.fmul(p, t, flags=_FLAGS), t, t), _constant(1.0), flags=_FLAGS)
        def integers(v):
            return ir.Constant(_INTEGERS, [ir.Constant(ir.IntType(32), v)] * LANES)

        power = builder.bitcast(builder.shl(builder.add(n, integers(127)), integers(23)), _FLOATS)
        return builder.select(counts, builder.fmul(p, power, flags=_FLAGS), _constant(0.0))

    return VECTOR(VECTOR), generate


@njit(**KERNEL)
def exp_one(x):
    """e^x of one number, by the same polynomial."""
    return largest(exp(splat(x)))
