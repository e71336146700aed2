"""A function on its way to having its images with the channels last.

`ChannelsLastRewriter` goes through the bindings in order, applies the rules of
`channels_last_rules`, and transposes where arrays pass from one layout to the other.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

from meta import op
from meta.base.device import Device
from meta.base.source import Span
from meta.dialect.core.ir_calls import called_op, named_args, new_call, tensor_of
from meta.ir import (
    Binding,
    Block,
    Call,
    DefUse,
    Expr,
    Function,
    TupleGetItem,
    TupleType,
    Var,
    operands,
    type_bytes,
    type_of,
)
from meta.ir.visit import uses
from meta.op.core.check import permutation
from meta.passes.alias_analysis import AliasSets, owning_tuple
from meta.passes.channels_last_rules import (
    FIRST,
    LAST,
    ImageCall,
    channels_last_type,
    is_image,
    rewritten_call,
)

GAIN = {"cuda": 2, "cpu": 0.9}
"""What a convolution with the channels first costs more, as a multiple of transposing the images
that it reads and writes; on the CPU one alone stays as it is. float16 on an H200, 2026-11-22: 64
kernels of 3x3 over [64, 64, 56, 56] take 39 us with the channels last and 89 with the channels
first, and the two transposes 26; of 1x1 over [64, 256, 56, 56] 35 and 38. float32 there with
META_TF32: 129 us with the transposes and 140, 7x7 from 3 to 64 channels 518 and 608.
"""


class ChannelsLastRewriter:
    """A function on its way to run on ``device``: which arrays there are with the channels last.

    chosen: the results of the calls that rules are applied to. None: of all to which they apply,
    beginning with convolutions. tries: whether they are applied whatever is gained; only if that
    pays otherwise. What is chosen is tried.
    """

    def __init__(
        self,
        function: Function,
        buffers: AliasSets,
        device: Device,
        chosen: Container[Var] | None = None,
        tries: bool = False,
    ) -> None:
        self._function, self._buffers, self.device = function, buffers, device
        self._chosen = chosen
        self.tries = tries or chosen is not None
        self._uses = DefUse(function)
        self._written = {
            owning_tuple(b) for bound in function.body.bindings for b in buffers.written_by(bound)
        }
        self._made: list[Binding] = []
        self._last: dict[Expr, Var] = {}
        # Arrays that there are with the channels last only.
        self._only: set[Expr] = set()
        # Tuples with such fields: what they became, and the numbers of these fields.
        self._tuples: dict[Expr, tuple[Var, frozenset[int]]] = {}
        # Kernels of convolutions, which are small beside images, and often transposed beforehand.
        self._kernels: set[Expr] = set()
        # Bytes of images: what is transposed, and what convolutions read and write.
        self._transposed_bytes = self._gained_bytes = 0

    def rewritten(self) -> Function:
        """Return the function with rules applied to its outermost block, if that pays."""
        for binding in self._function.body.bindings:
            self._binding(binding)
            written = {owning_tuple(b) for b in self._buffers.written_by(binding)}
            pairs = self._last.items()
            stale = [a for a, last in pairs if self._are_in(written, a, last)]
            for atom in stale:
                del self._last[atom]
        result = self._function.body.result
        self._restore(operands(result))
        loses = self._transposed_bytes > GAIN[self.device.kind] * self._gained_bytes
        if loses and not self.tries:
            return self._function
        return replace(self._function, body=Block(tuple(self._made), result))

    def last(self, atom: Expr, span: Span | None) -> Var:
        """Return an array with the channels last, transposed now if there is none."""
        if atom not in self._last:
            type_ = tensor_of(atom)
            self._last[atom] = self._transposed(
                atom, LAST, Var("last", channels_last_type(type_)), span
            )
        return self._last[atom]

    def has_last(self, atom: Expr) -> bool:
        """Whether an array is there with the channels last, or to be."""
        return atom in self._last if self._chosen is None else is_image(type_of(atom))

    def convolves(self, kernel: Expr, *images: Expr) -> None:
        """Note a convolution, its kernel and images; these are none for a product of matrices."""
        self._kernels.add(kernel)
        self._gained_bytes += sum(type_bytes(type_of(image)) for image in images)

    def _binding(self, binding: Binding) -> None:
        value = binding.value
        if isinstance(value, TupleGetItem) and value.value in self._tuples:
            whole, fields = self._tuples[value.value]
            var = self._renamed(binding.var) if value.index in fields else binding.var
            self._made.append(Binding(var, TupleGetItem(whole, value.index), binding.span))
            return
        site, called = None, called_op(value)
        if called is not None and isinstance(value, Call):
            args = named_args(called, value)
            if called is op.permute_dims and self._permuted(binding, args["x"], args["axes"]):
                return
            site = ImageCall(called, args, self, binding.var, binding.span)
        if self._chosen is not None and binding.var not in self._chosen:
            site = None
        written = None if site is None else rewritten_call(site)
        if written is None:
            self._restore(uses(value))
            self._made.append(binding)
            return
        self._made.append(Binding(self._result(binding.var), written, binding.span))

    def _permuted(self, binding: Binding, source: Expr, axes: Any) -> bool:
        """Take a permutation that is written in the program, from or to the channels last, for what
        it is: of a program that gets and returns arrays in this order, nothing is transposed.
        """
        if not is_image(type_of(source)):
            return False
        order = permutation(axes, 4)
        if order == FIRST and isinstance(source, Var) and source not in self._only:
            self._last[binding.var] = source
            self._made.append(binding)
            return True
        last = self._last.get(source)
        # A view would see what is written later.
        if order == LAST and last is not None and not self._are_in(self._written, source, last):
            view = new_call(op.reshape, last, tensor_of(last).known_shape)
            self._made.append(Binding(binding.var, view, binding.span))
            return True
        return False

    def _are_in(self, written: Container[Expr], *atoms: Expr) -> bool:
        """Whether the memory of one of some arrays is among what is written."""
        return any(owning_tuple(self._buffers.of(a)) in written for a in atoms)

    def _result(self, var: Var) -> Var:
        """Return what the result of an operator with the channels last is bound to."""
        if isinstance(var.type, TupleType):
            fields = frozenset(i for i, t in enumerate(var.type.fields) if is_image(t))
            types = (
                channels_last_type(t) if i in fields else t for i, t in enumerate(var.type.fields)
            )
            whole = Var(var.name, TupleType(tuple(types)))
            self._tuples[var] = whole, fields
            return whole
        return self._renamed(var) if is_image(var.type) else var

    def _renamed(self, var: Var) -> Var:
        """Return the variable for an array that there is with the channels last only."""
        made = self._last[var] = Var(var.name, channels_last_type(tensor_of(var)))
        self._only.add(var)
        return made

    def only_fields(self, var: Var) -> bool:
        """Whether a tuple is taken apart wherever it is used, in the outermost block."""
        own = set(self._function.body.bindings)
        users = self._uses.users(var)
        return all(
            isinstance(u, Binding) and u in own and isinstance(u.value, TupleGetItem) for u in users
        )

    def _restore(self, atoms: Iterable[Expr]) -> None:
        """Transpose back what is there with the channels last only."""
        for atom in atoms:
            if atom in self._only:
                self._only.discard(atom)
                assert isinstance(atom, Var)
                self._transposed(self._last[atom], FIRST, atom, None)

    def _transposed(self, atom: Expr, axes: tuple[int, ...], var: Var, span: Span | None) -> Var:
        type_ = tensor_of(atom)
        moved = [i for i in axes if type_.shape[i] != 1]
        if moved == sorted(moved):  # extents of 1 may be anywhere
            value = new_call(op.reshape, atom, tensor_of(var).known_shape)
        else:
            value = new_call(op.permute_dims, atom, axes)
            if self._kernels.isdisjoint((atom, var)):
                self._transposed_bytes += type_bytes(type_)
        self._made.append(Binding(var, value, span))
        return var
