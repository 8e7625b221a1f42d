"""What the ELS kernels add to `vector`: vectors from any place of an array, 2^x, and which lanes are below."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fpmc.engine.simd.vector import _BYTES, _FLAGS, _FLOATS, _INTEGERS, KERNEL, LANES, VECTOR, _constant, elements_of

LINE = 64                                               # bytes of a line of cache


@njit(**KERNEL)
def aligned(count):
    """Zeros in float32 from the beginning of a line on: a vector that lies in two lines takes twice as long to load."""
    whole = np.zeros(count + LINE // 4, np.float32)
    start = -whole.ctypes.data % LINE // 4
    return whole[start : start + count]


def _address(context, builder, array_type, array, index):
    data = elements_of(context, builder, array_type, array)
    return builder.bitcast(builder.gep(data, [index]), _FLOATS.as_pointer())


@intrinsic
def load_at(context, array, index):
    """`LANES` consecutive elements of a flat float32 array, from `index` on."""
    def generate(context, builder, signature, args):
        value = builder.load(_address(context, builder, signature.args[0], args[0], args[1]))
        value.align = 4
        return value

    return VECTOR(array, types.intp), generate


@intrinsic
def store_at(context, array, index, value):
    """Write `LANES` consecutive elements of a flat float32 array, from `index` on."""
    def generate(context, builder, signature, args):
        builder.store(args[2], _address(context, builder, signature.args[0], args[0], args[1])).align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, VECTOR), generate


@intrinsic
def copy_bytes(context, source, start, target, to):
    """`LANES` bytes from one flat uint8 array to another."""
    def generate(context, builder, signature, args):
        def place(kind, array, index):
            data = elements_of(context, builder, kind, array)
            return builder.bitcast(builder.gep(data, [index]), _BYTES.as_pointer())

        value = builder.load(place(signature.args[0], args[0], args[1]))
        value.align = 1
        builder.store(value, place(signature.args[2], args[2], args[3])).align = 1
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp), generate


@intrinsic
def prefetch(context, array, index):
    """An element of a flat uint8 array will be read soon."""
    def generate(context, builder, signature, args):
        data = elements_of(context, builder, signature.args[0], args[0])
        place, number = builder.gep(data, [args[1]]), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, number(0), number(3), number(1)])       # to read, kept near, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def any_less(context, a, b):
    """a < b in any lane."""
    def generate(context, builder, signature, args):
        bits = builder.bitcast(builder.fcmp_ordered("<", args[0], args[1], flags=_FLAGS), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(VECTOR, VECTOR), generate


@intrinsic
def which_less(context, a, b):
    """a < b, a bit for each lane."""
    def generate(context, builder, signature, args):
        bits = builder.bitcast(builder.fcmp_ordered("<", args[0], args[1], flags=_FLAGS), ir.IntType(LANES))
        return builder.zext(bits, ir.IntType(64))

    return types.int64(VECTOR, VECTOR), generate


@intrinsic
def if_less(context, a, b, value):
    """The value where a < b, else 0, lane by lane."""
    def generate(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<", args[0], args[1], flags=_FLAGS), args[2], _constant(0.0))

    return VECTOR(VECTOR, VECTOR, VECTOR), generate


@intrinsic
def lowest_bit(context, bits):
    """The place of the lowest bit that is set; some must be."""
    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@intrinsic
def power(context, x):
    """2^x for x ≤ 0, lane by lane, to 2.5e-7 relative; 2^−126 below −126.

    x = n + f with |f| ≤ 1/2; a polynomial for 2^f, the best of degree 5 (7.5e-8), and n is added to the exponent.
    """
    def generate(context, builder, signature, args):
        low = _constant(-126.0)
        x = builder.select(builder.fcmp_ordered(">", args[0], low, flags=_FLAGS), args[0], low)
        kind = ir.FunctionType(_FLOATS, [_FLOATS])
        rounding = cgutils.get_or_insert_function(builder.module, kind, f"llvm.rint.v{LANES}f32")
        whole = builder.call(rounding, [x])
        f = builder.fsub(x, whole, flags=_FLAGS)
        p = _constant(0.0013276471992704016)
        for c in (0.009675541334452163, 0.055507132734974075, 0.24022119723840044, 0.6931469670647609, 1.0):
            p = builder.fadd(builder.fmul(p, f, flags=_FLAGS), _constant(c), flags=_FLAGS)
        shift = ir.Constant(_INTEGERS, [ir.Constant(ir.IntType(32), 23)] * LANES)
        exponent = builder.shl(builder.fptosi(whole, _INTEGERS), shift)
        return builder.bitcast(builder.add(builder.bitcast(p, _INTEGERS), exponent), _FLOATS)

    return VECTOR(VECTOR), generate
