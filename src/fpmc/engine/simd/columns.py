"""What the ELS kernel adds to `vector`: vectors from any place of an array, 2^x, and whether any lane is below."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fpmc.engine.simd.vector import _FLAGS, _FLOATS, _INTEGERS, LANES, VECTOR, _constant


def _address(context, builder, array_type, array, index):
    data = cgutils.create_struct_proxy(array_type)(context, builder, array).data
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
def any_less(context, a, b):
    """a < b in any lane."""
    def generate(context, builder, signature, args):
        bits = builder.bitcast(builder.fcmp_ordered("<", args[0], args[1], flags=_FLAGS), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(VECTOR, VECTOR), generate


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
