"""`gather_parameters`: parameters of which a rank has a part, whole where the program uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import cast

from meta import op
from meta.base.dtype import bits, is_float
from meta.base.errors import DistributedError
from meta.dialect.core.ir_calls import (
    base_op,
    full_view_source,
    named_args,
    tensor_of,
    view_source,
    written_atoms,
)
from meta.ir import (
    Binding,
    Block,
    Call,
    Expr,
    Function,
    Module,
    TensorType,
    TupleGetItem,
    TupleType,
    Var,
    operands,
    substitute,
    type_bytes,
)
from meta.ir.visit import uses
from meta.op.core.tracing import Symbol, Trace
from meta.passes.distributed.flat_shards import SMALL_BYTES, all_gather, bucket_all_gather
from meta.runtime.placement import Split

GatherKey = tuple[Var, str | None]
"""What is gathered: a parameter, in its own dtype (None) or another one."""
MAX_ADJACENT = 4
"""So many bindings have room for their parameters at the same time."""


def gather_parameters(
    module: Module,
    *,
    parts: Mapping[int, Split],
    limit: int | None = None,
    small: int = SMALL_BYTES,
) -> Module:
    """Let main take flat parts of parameters, and gather them before they are used.

    A gathered parameter is one value for several uses as long as there is room for it: at most
    ``limit`` bytes are gathered at a time. Where the next gather has none, the parameters that are
    used again last go, and are gathered again for that use, as in a backward pass. The gather waits
    for what used them (`optimization_barrier`): as gathers keep their order, the bound holds for
    whatever starts them earlier than they stand here.

    What only looks at a parameter in another way, views, permutations and casts, is computed again
    with it; a parameter that is cast to a narrower dtype is gathered in that one.

    Parameters
    ----------
    parts: by the number of a parameter of main, how it is split, which is `Split` without an axis.
    limit: bytes, but at least what the binding that needs most needs; None: what the four bindings
        in a row need that need most, so that gathers for the next ones may run beside a binding,
        and as much as a quarter of it for what is small.
    small: parameters of at most so many bytes are gathered together where the first is used, and
        stay, as far as the limit leaves room for them beside the binding that needs most.

    Raises DistributedError for a program that writes to such a parameter.

    >>> from meta.ir import parse
    >>> print(gather_parameters(parse('''
    ... func @main(%x: float32[2, 3], %w: float32[3, 3]) -> float32[2, 3] {
    ...   %y: float32[2, 3] = matmul(%x, %w)
    ...   return %y
    ... }'''), parts={1: Split("dp", 4)}))
    func @main(%x: float32[2, 3], %w: float32[3]) -> float32[2, 3] {
      %0: float32[12] = all_gather(%w, over="dp", size=4)
      %1: float32[9] = strided_slice(%0, begin=(0,), end=(9,))
      %2: float32[3, 3] = reshape(%1, shape=(3, 3))
      %y: float32[2, 3] = matmul(%x, %2)
      return %y
    }
    """
    if not parts:
        return module
    main = _Gatherer(module.main, parts, limit, small).function()
    return module.with_functions({**module.functions, "main": main})


@dataclass(frozen=True)
class _ParameterView:
    """A parameter seen in some way: what was done to the whole of it, one step after another.

    dtype: that in which it is gathered, other than its own; None: its own. skipped: the step, a
    cast to that dtype, that is then none.
    """

    whole: Var
    steps: tuple[Binding, ...] = ()
    dtype: str | None = None
    skipped: int = -1

    def then(self, step: Binding) -> _ParameterView:
        """Return what a further step makes of it."""
        steps = (*self.steps, step)
        own, new = tensor_of(self.whole).dtype, tensor_of(step.var).dtype
        narrows = is_float(own) and is_float(new) and bits(new) < bits(own)
        if narrows and not any(_is_cast(s) for s in self.steps):
            return _ParameterView(self.whole, steps, new, len(steps) - 1)
        return _ParameterView(self.whole, steps, self.dtype, self.skipped)

    @property
    def kind(self) -> GatherKey:
        """What is gathered for it."""
        return self.whole, self.dtype

    def bytes(self) -> int:
        """Return how much memory it takes, what it is made of included."""
        type_ = tensor_of(self.whole)
        gathered_type = type_ if self.dtype is None else type_.with_dtype(self.dtype)
        copies = [
            tensor_of(s.var)
            for i, s in enumerate(self.steps)
            if i != self.skipped and view_source(cast(Call, s.value)) is None
        ]
        return sum(map(type_bytes, (gathered_type, *copies)))


@dataclass(eq=False)
class _GatheredParameter:
    """A parameter that was gathered. size: in bytes. used: the number of its last user as yet.
    made: by the variable of the program, what takes its place.
    """

    size: int
    used: int
    made: dict[Expr, Var] = field(default_factory=dict)


def _is_cast(step: Binding) -> bool:
    return base_op(cast(Call, step.value).callee) is op.astype


class _Gatherer:
    """The gathers of one function; see `gather_parameters`."""

    def __init__(
        self, main: Function, parts: Mapping[int, Split], limit: int | None, small: int
    ) -> None:
        self.main = main
        self.splits = {main.params[i]: split for i, split in parts.items()}
        self.held = {
            whole: Var(whole.name, TensorType(split.local(shape), tensor_of(whole).dtype))
            for whole, split in self.splits.items()
            for shape in [tensor_of(whole).static_shape]
        }
        self.looks: dict[Expr, _ParameterView] = {
            whole: _ParameterView(whole) for whole in self.splits
        }
        self.bindings = [b for b in main.body.bindings if not self._looks_only(b)]
        needed = [dict.fromkeys(self._looked_at(uses(b.value))) for b in self.bindings]
        self.needed = [list(one) for one in needed]
        self.needed.append(list(dict.fromkeys(self._looked_at(operands(main.body.result)))))
        self.users: dict[GatherKey, list[int]] = {}
        self.last: dict[Expr, int] = {}
        for i, atoms in enumerate(self.needed):
            for kind in {self.looks[atom].kind for atom in atoms}:
                self.users.setdefault(kind, []).append(i)
            at_end = i == len(self.bindings)
            read = operands(main.body.result) if at_end else uses(self.bindings[i].value)
            self.last.update(dict.fromkeys(read, i))
        least, most = self._most(1), self._most(MAX_ADJACENT)
        room = most // 4 if limit is None else max(limit - least, 0)
        self.kept = dict(self._small(small, room))
        kept = sum(self.kept.values())
        self.limit = most if limit is None else max(limit, least) - kept
        self.live: dict[GatherKey, _GatheredParameter] = {}
        self.stays: dict[GatherKey, _GatheredParameter] = {}
        self.items: list[Binding] = []

    def _looked_at(self, atoms: object) -> list[Expr]:
        return [atom for atom in atoms if atom in self.looks]  # type: ignore[attr-defined]

    def _looks_only(self, binding: Binding) -> bool:
        """Note a binding that is a view, a permutation or a cast of a parameter."""
        call = binding.value
        read = self._looked_at(uses(call))
        if not read:
            return False
        base = base_op(call.callee) if isinstance(call, Call) else None
        if base is None or not isinstance(call, Call):
            return False
        if any(atom in self.looks for atom in written_atoms(base, call)):
            raise DistributedError(
                "a program writes to a parameter of which ranks have parts",
                op=base.name,
                found=f"%{self.looks[read[0]].whole.name}",
                hint="requires_grad is for what an optimizer updates; or train with zero=2",
                span=binding.span,
            )
        atoms = [a for a in operands(call) if isinstance(a, Var)]
        copies = base in (op.astype, op.permute_dims)
        source = named_args(base, call)["x"] if copies else full_view_source(call)
        if atoms != [source] or source not in self.looks:
            return False
        self.looks[binding.var] = self.looks[source].then(binding)
        return True

    def _sizes(self, number: int) -> dict[GatherKey, int]:
        """Return the bytes that a binding needs of each parameter."""
        found: dict[GatherKey, int] = {}
        for atom in self.needed[number]:
            look = self.looks[atom]
            found[look.kind] = max(found.get(look.kind, 0), look.bytes())
        return found

    def _most(self, count: int) -> int:
        """Return the most bytes that so many users of parameters in a row need."""
        users = [sizes for i in range(len(self.needed)) if (sizes := self._sizes(i))]
        rows = (users[i : i + count] for i in range(max(len(users) - count, 0) + 1))
        together: list[dict[GatherKey, int]] = []
        for row in rows:
            together.append({})
            for sizes in row:
                for kind, size in sizes.items():
                    together[-1][kind] = max(together[-1].get(kind, 0), size)
        return max(sum(sizes.values()) for sizes in together)

    def _small(self, small: int, room: int) -> Iterator[tuple[GatherKey, int]]:
        """Yield what is gathered together and stays, with its bytes: the smallest ones."""
        sizes: dict[GatherKey, int] = {}
        for look in self.looks.values():
            if look.kind in self.users:
                sizes[look.kind] = max(sizes.get(look.kind, 0), look.bytes())
        for kind, size in sorted(sizes.items(), key=lambda item: item[1]):
            room -= size
            if size > small or room < 0:
                return
            yield kind, size

    def function(self) -> Function:
        """Return main with the gathers in place."""
        for number, binding in enumerate(self.bindings):
            (changed,) = self._with_gathered(number, Block((binding,), binding.var)).bindings
            self.items.append(changed)
        result = self._with_gathered(len(self.bindings), Block((), self.main.body.result)).result
        params = tuple(self.held.get(p, p) for p in self.main.params)
        body = Block(tuple(self.items), result)
        return Function(params, body, self.main.result_type, self.main.attrs)

    def _with_gathered(self, number: int, block: Block) -> Block:
        """Gather what a binding needs, and return it with what it needs in place."""
        needed = self._sizes(number)
        if self.kept and not self.kept.keys().isdisjoint(needed):
            self._gather_small(number)
        sizes = {k: n for k, n in needed.items() if k not in self.stays}
        missing = {k: n for k, n in sizes.items() if k not in self.live}
        after: list[Var] = []
        for kind, size in sizes.items():
            if kind in self.live:
                self.live[kind].size = max(self.live[kind].size, size)
                self.live[kind].used = number
        # The last ones to be used again go; of those that are not, the first one to be free.
        others = [k for k in self.live if k not in sizes]
        others.sort(key=lambda k: (self._next(k, number), -self.live[k].used))
        while others and self._in_flight() + sum(missing.values()) > self.limit:
            after += self._user(self.live.pop(others.pop()).used, number)
        for kind, size in missing.items():
            self.live[kind] = _GatheredParameter(size, number)
            self.live[kind].made[kind[0]] = self._gather(kind, list(dict.fromkeys(after)))
        names: dict[Expr, Expr] = {atom: self._seen(atom) for atom in self.needed[number]}
        return substitute(block, names) if names else block

    def _in_flight(self) -> int:
        return sum(instance.size for instance in self.live.values())

    def _next(self, kind: GatherKey, number: int) -> float:
        """Return the number of the next user of what was gathered."""
        return next((i for i in self.users[kind] if i > number), inf)

    def _user(self, used: int, until: int) -> list[Var]:
        """Return a value that is known only when a binding has been evaluated: its own, or what was
        computed from it and is in use anyway when another binding is evaluated.
        """
        known = {self.bindings[used].var}
        for binding in self.bindings[used:until]:
            if binding.var in known or not known.isdisjoint(uses(binding.value)):
                known.add(binding.var)
                is_tensor = isinstance(binding.var.type, TensorType)
                if is_tensor and self.last.get(binding.var, -1) >= until:
                    return [binding.var]
        own = self.bindings[used].var
        if isinstance(own.type, TensorType):
            return [own]
        fields = own.type.fields if isinstance(own.type, TupleType) else ()
        for i, type_ in enumerate(fields):
            if isinstance(type_, TensorType):
                self.items.append(Binding(Var("", type_), TupleGetItem(own, i)))
                return [self.items[-1].var]
        return []

    def _gather_small(self, number: int) -> None:
        """Gather all that is small, one exchange for each dtype."""
        alike: dict[tuple[str, str | None, Split], list[GatherKey]] = {}
        for kind in self.kept:
            own = tensor_of(kind[0]).dtype
            alike.setdefault((own, kind[1], self.splits[kind[0]]), []).append(kind)
        for (_, dtype, split), kinds in alike.items():
            wholes = [whole for whole, _ in kinds]
            shapes = [tensor_of(whole).static_shape for whole in wholes]
            trace = Trace()
            trace.site = lambda: None
            held = [self.held[whole] for whole in wholes]
            parts = [Symbol(trace, part, tensor_of(part)) for part in held]
            found = trace.run(bucket_all_gather, parts, split, shapes, dtype)
            self.items += trace.builder.bindings
            for kind, symbol in zip(kinds, found, strict=True):
                self.stays[kind] = _GatheredParameter(self.kept[kind], number)
                self.stays[kind].made[kind[0]] = symbol.atom
        self.kept = {}

    def _gather(self, kind: GatherKey, after: list[Var]) -> Var:
        """Gather a parameter when other values are known."""
        whole, dtype = kind
        trace = Trace()
        trace.site = lambda: None
        held = self.held[whole]

        def code() -> Symbol:
            x = Symbol(trace, held, tensor_of(held))
            if after:
                x = op.optimization_barrier(x, [Symbol(trace, v, tensor_of(v)) for v in after])
            if dtype is not None:
                x = op.astype(x, dtype)
            found: Symbol = all_gather(x, self.splits[whole], tensor_of(whole).static_shape)
            return found

        made = trace.run(code).atom
        self.items += trace.builder.bindings
        assert isinstance(made, Var)
        return made

    def _seen(self, atom: Expr) -> Var:
        """Return what takes the place of a parameter, or of a view or cast of it."""
        look = self.looks[atom]
        made = (self.stays.get(look.kind) or self.live[look.kind]).made
        current = made[look.whole]
        for i, step in enumerate(look.steps):
            if i == look.skipped:
                made[step.var] = current
            elif step.var not in made:
                type_ = tensor_of(step.var)
                if look.dtype is not None and i < look.skipped:
                    type_ = type_.with_dtype(look.dtype)
                before = look.steps[i - 1].var if i else look.whole
                (copy,) = substitute(Block((step,), step.var), {before: current}).bindings
                made[step.var] = Var(step.var.name, type_)
                self.items.append(Binding(made[step.var], copy.value, step.span))
            current = made[step.var]
        return current
