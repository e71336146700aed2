"""Convolution networks with the channels last, from the first convolution to the last.

How each operator is written so is in `channels_last_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator

from meta import op
from meta.base.device import Device
from meta.dialect.core import dialects
from meta.dialect.core.ir_calls import called_op, tensor_of
from meta.dialect.core.preference import current
from meta.ir import Function, Module
from meta.passes.alias_analysis import AliasSets, AliasSummaries
from meta.passes.channels_last_rewriter import ChannelsLastRewriter
from meta.passes.channels_last_rules import CONVOLUTIONS, DTYPES
from meta.passes.manager import Pass
from meta.passes.plan_layouts import Chosen, plan_layouts
from meta.passes.profitability import cheaper, compares


def channels_last(
    module: Module,
    *,
    device: Device,
    devices: tuple[str, ...] = ("cuda", "cpu"),
    frozen: bool = False,
    lower: Pass | None = None,
) -> Module:
    """Run convolution networks with the channels last, on ``devices`` and in the `DTYPES` there.

    Tensor cores, and the vectors of a CPU, read the channels of a pixel in a row; with the channels
    first, a library transposes what it is given and what it returns, in every call. Of float32 on
    CUDA that is so with META_TF32, and otherwise of large convolutions of single channels. Arrays
    of four axes are kept with the channels last from operator to operator where there is a rule for
    it: convolutions and their gradients, pooling, batch normalisation, elementwise operators, sums
    over the pixels. They are transposed where another operator, or the caller, takes them. Kernels
    of convolutions, which a program gets as [O, I, H, W], are transposed once in a run, after their
    cast to half precision; on the CPU a convolution stays that reads and writes fewer bytes of
    images than it has in its kernel.
    A function without convolutions stays as it is, and so do blocks in blocks; and so does one in
    which more would be transposed than convolutions gain: on CUDA a kernel of 1x1 is a product of
    matrices with the channels first, too, and gains nothing (see `channels_last_rewriter.GAIN`).
    Where all that changes was measured, that decides (`cheaper`) among this program, the one given,
    one in which all convolutions have the channels last, and one in which each call has its layout
    by a plan (`plan_layouts`). A ``frozen`` program has all convolutions with the channels last, as
    `pack_weights` wants them. ``lower``: the passes that follow.

    >>> from meta.base.device import Device
    >>> from meta.ir import parse
    >>> print(meta.passes.channels_last(parse('''
    ... func @main(%x: float16[2, 8, 6, 6], %w: float16[8, 8, 3, 3]) -> float16[2, 8, 2, 2] {
    ...   %0: float16[2, 8, 4, 4] = conv2d(%x, %w)
    ...   %1: float16[2, 8, 4, 4] = relu(%0)
    ...   %2: float16[2, 8, 2, 2] = conv2d(%1, %w)
    ...   return %2
    ... }'''), device=Device("cuda")))
    func @main(%x: float16[2, 8, 6, 6], %w: float16[8, 8, 3, 3]) -> float16[2, 8, 2, 2] {
      %last: float16[2, 6, 6, 8] = permute_dims(%x, axes=(0, 2, 3, 1))
      %last_1: float16[8, 3, 3, 8] = permute_dims(%w, axes=(0, 2, 3, 1))
      %0: float16[2, 4, 4, 8] = conv2d(%last, %last_1, layout="NHWC", kernel_layout="OHWI", \
out_layout="NHWC")
      %1: float16[2, 4, 4, 8] = relu(%0)
      %2: float16[2, 2, 2, 8] = conv2d(%1, %last_1, layout="NHWC", kernel_layout="OHWI", \
out_layout="NHWC")
      %3: float16[2, 8, 2, 2] = permute_dims(%2, axes=(0, 3, 1, 2))
      return %3
    }
    """
    if device.kind not in devices:
        return module
    measured = compares(device, lower)
    dtypes = DTYPES[device.kind]
    if not any(_convolves(f, dtypes) for f in module.functions.values()):
        return module
    _load_kinds(device)
    summaries = AliasSummaries(module)

    def changed(chosen: Chosen | None = None, *, tries: bool = False) -> Module:
        functions = {
            name: ChannelsLastRewriter(
                f, AliasSets(f, summaries), device, chosen, tries
            ).rewritten()
            if _convolves(f, dtypes)
            else f
            for name, f in module.functions.items()
        }
        return module.with_functions(functions)

    def others() -> Iterator[Module]:
        yield module
        yield changed(tries=True)
        planned = plan_layouts(module, device)  # of what was measured by now
        if planned is not None:
            yield changed(planned)

    ruled = changed(tries=frozen)
    return cheaper(ruled, others(), device=device, lower=lower) if measured else ruled


def _load_kinds(device: Device) -> None:
    """Import a dialect that says which operators are elementwise, an excluded one if need be."""
    refusal = current().refusal
    able = [one for one in dialects() if one.refusal(device) is None]
    for dialect in sorted(able, key=lambda one: refusal(one.name) is not None):
        dialect.load()
        if any(kernel.fusion is not None for kernel in dialect.ops.values()):
            return


def _convolves(function: Function, dtypes: tuple[str, ...]) -> bool:
    """Whether there is a convolution of one of the dtypes outside of inner blocks, or one that has
    the channels last already.
    """
    called = [(called_op(b.value), b.var) for b in function.body.bindings]
    of_dtypes = (tensor_of(var).dtype in dtypes for o, var in called if o in CONVOLUTIONS)
    return any(o is op.packed_conv2d for o, _ in called) or any(of_dtypes)
