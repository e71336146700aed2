"""`Model`: Python code with parameters.

A model is written as a class with ``build`` (make the attributes), ``forward`` and, where inference
differs, ``forward_infer``. Its arrays and those of models in its attributes, lists, tuples and
dicts are its state.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from meta.amp.cast_rule import rules_in_force
from meta.base import aliases
from meta.base.device import Device, default_device, destination
from meta.base.dtype import canonical, is_float
from meta.base.errors import ArgumentError, DistributedError, MetaError, UnknownName
from meta.base.signature_check import require_bindable
from meta.grad.core import no_grad
from meta.model.init import draw_deferred
from meta.model.recompute import call_checkpointed
from meta.model.state import Replacement, Unmatched, array_names, load
from meta.model.summary import Summary, summarize
from meta.op.core import tree
from meta.runtime.deferred_values import deferred, empty_init, moved_deferred
from meta.runtime.master_weights import add_master, masters_of
from meta.runtime.ndarray import ndarray
from meta.vm.compiler.calling_convention import Program
from meta.vm.compiler.pipeline import before_autodiff_key


class ConstructorSignature:
    """The ``__signature__`` of classes of models; an instance has none, as a call of it is
    something else, nor has a class with an ``__init__`` of its own.
    """

    def __init__(self, constructor: Any) -> None:
        self.constructor = constructor

    def __get__(self, instance: Any, owner: Any) -> inspect.Signature:
        if instance is not None or owner.__init__ is not self.constructor:
            raise AttributeError("__signature__")
        found: inspect.Signature = owner.constructor_signature()
        return found


class Model:
    """Base class of models and layers.

    Calling a model runs ``forward``, or in infer mode ``forward_infer`` if there is one. Arrays and
    models in lists, tuples and dicts are found as those in attributes are, and named by position or
    key ("layers.0.weight"): no container is needed.

    Attributes
    ----------
    not_kept: names that other sources keep beside a model's own, and that carry nothing here;
    `load_state_dict` accepts them.
    renamed: pairs of a regular expression and its replacement, as `re.sub` takes them, that turn
    names which other libraries or older versions use into a model's own; applied one after the
    other to names as they are inside this model.
    feature_axes: by the name of an array of a layer, its axes of output and of input features, None
    where it has no such: what "column" and "row" are in a plan of
    `meta.distributed.tensor_parallel`.
    records: whether calls are recorded for `backward`. A model that returns gradients, or uses them
    up, says False.

    >>> class Net(meta.Model):
    ...     def build(self):
    ...         self.head = meta.model.Linear(3, 2)
    ...
    ...     @meta.model.trace
    ...     def forward(self, x):
    ...         return self.head(x).relu()
    >>> Net()(meta.ones((4, 3))).shape
    (4, 2)
    """

    not_kept: ClassVar[tuple[str, ...]] = ()
    renamed: ClassVar[tuple[tuple[str, Replacement], ...]] = ()
    feature_axes: ClassVar[Mapping[str, tuple[int | None, int | None]]] = {}
    records = True
    # Whether parameters are drawn behind ``build``, which reads none of their values.
    draws_late = False
    # What `meta.amp.autocast` makes of a model; set once by `meta.model.wrapper`.
    __autocast__: ClassVar[Callable[[Model, str, str | None], Model]]

    # What is kept for gradients, which are computed by calling it again; `meta.model.checkpoint`.
    _checkpointed = "everything"
    # Whether ranks have parts of its arrays; see `meta.distributed.tensor_parallel`.
    _sharded = False
    _training = True
    # Why it is not called now, and what to do; see `meta.model.gradient`.
    _refused: tuple[str, str] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            if "device" in kwargs and "device" not in inspect.signature(self.build).parameters:
                with Device(kwargs.pop("device") or default_device()):
                    self._build(args, kwargs)
            else:
                self._build(args, kwargs)
        except MetaError:
            raise
        except TypeError:
            require_bindable(type(self).__name__, self.constructor_signature(), args, kwargs)
            raise

    __signature__ = ConstructorSignature(__init__)

    def _build(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.draws_late:
            self.build(*args, **kwargs)
            return
        with empty_init():
            self.build(*args, **kwargs)
        draw_deferred(self.state().values())

    @classmethod
    def constructor_signature(cls) -> inspect.Signature:
        """Return what the constructor takes: what ``build`` says, unless it is told otherwise, and
        ``device``, where the arrays will be.
        """
        _, *parameters = inspect.signature(cls.build).parameters.values()
        device = inspect.Parameter("device", inspect.Parameter.KEYWORD_ONLY, default=None)
        if all(p.name != "device" for p in parameters):
            parameters = sorted([*parameters, device], key=lambda p: p.kind)
        return inspect.Signature(parameters)

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Make the attributes; takes what the constructor takes."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result. Decorate it with `meta.model.trace`."""
        raise ArgumentError(
            f"{type(self).__name__} has no forward", hint="define forward(self, x, ...)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        """Return a model with arrays of its own; it is traced anew."""
        result = type(self).__new__(type(self))
        memo[id(self)] = result
        vars(result).update(copy.deepcopy(self.__getstate__(), memo))
        return result

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled, and shared by ``copy.copy``: all but what was traced."""
        return {k: v for k, v in vars(self).items() if k != "_programs"}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.records:
            return self._run(args, kwargs)
        with no_grad():
            return self._run(args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """Say what torch's methods are called here; only what is missing comes here."""
        if name in aliases.MODEL:
            raise UnknownName(
                f"{type(self).__name__} has no attribute {name!r}",
                hint=f"write {aliases.MODEL[name]}",
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def require_callable(self) -> None:
        """Raise DistributedError for a model whose parameters are elsewhere now."""
        if self._refused is not None:
            what, hint = self._refused
            raise DistributedError(what, found=type(self).__name__, hint=hint)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._refused is not None:
            self.require_callable()
        entry = self.entry()
        policy = self._checkpointed
        if policy == "everything":
            return entry(*args, **kwargs)
        state, name = self.state().values(), type(self).__name__
        return call_checkpointed(entry, args, kwargs, state, name, policy)

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """Return the traced program for arguments of these types (see `meta.vm.compile`)."""
        program: Program = self.traced_entry().program(*args, **kwargs)
        return program

    def traced_entry(self) -> Any:
        """Return `entry`; ArgumentError if it is not decorated with `meta.model.trace`."""
        entry = self.entry()
        if not hasattr(entry, "program"):
            raise ArgumentError(
                f"{type(self).__name__}.{entry.__name__} is not traced",
                hint="decorate it with @meta.model.trace",
            )
        return entry

    def entry(self) -> Any:
        """Return the bound method that a call runs in the current mode."""
        infer = getattr(self, "forward_infer", None)
        return infer if infer is not None and not self._training else self.forward

    @property
    def training(self) -> bool:
        """Whether the model is in train mode (the initial one)."""
        return self._training

    def train(self, mode: bool = True) -> Model:
        """Switch this model and all models inside to train mode, or with False to infer mode;
        returns the model.
        """
        for model in self.models():
            model._training = mode
        return self

    def eval(self) -> Model:
        """Switch this model and all models inside to infer mode; returns the model."""
        return self.train(False)

    def members(self) -> dict[str, Any]:
        """Return what the model holds by name: its attributes that do not begin with "_".

        A model whose names are no Python attributes ("conv1.weight") says here what they are.
        """
        return {k: v for k, v in vars(self).items() if not k.startswith("_")}

    def settable(self) -> dict[str, Any]:
        """Return the dictionary in which traced code may set arrays: that of the attributes."""
        return vars(self)

    def call_signature(self) -> inspect.Signature | None:
        """Return what a call takes; None, the usual case, for what ``forward`` says."""
        return None

    def attributes(self) -> Iterator[tuple[str, Any]]:
        """Iterate over (dotted path, value) of everything in this model and the models and
        containers inside.
        """
        seen = {id(self)}
        stack: list[tuple[str, Any]] = list(reversed(self.members().items()))
        while stack:
            path, value = stack.pop()
            yield path, value
            if isinstance(value, Model | dict | list | tuple):
                if id(value) in seen:
                    continue
                seen.add(id(value))
            stack.extend((f"{path}.{k}", v) for k, v in reversed(_children(value)))

    def tensor_parallel_plan(self, ranks: int) -> Mapping[str, Any]:
        """Return how the layers right inside are divided among ranks, by name; see
        `meta.distributed.tensor_parallel`. Nothing, unless a model says so.
        """
        return {}

    def models(self) -> list[Model]:
        """Return this model and all models inside, each once."""
        inner = [v for _, v in self.attributes() if isinstance(v, Model)]
        return list({id(m): m for m in (self, *inner)}.values())

    def paths(self) -> Iterator[tuple[str, ndarray | Model]]:
        """Iterate over (dotted path, array or model) of this model ("") and all inside, each under
        every path that leads to it; `attributes` stops at what it has seen.
        """
        yield from _paths("", self, ())

    def state(self) -> dict[str, ndarray]:
        """Return parameters and other arrays by dotted name ("conv1.weight"), each array once."""
        names = array_names(self)
        return {name: names.arrays[name] for name in names.first_names().values()}

    def state_dict(self) -> dict[str, ndarray]:
        """Return the arrays of `state` under every name that they have: of tied weights, as torch
        does, each.
        """
        return array_names(self).arrays

    def named_parameters(self) -> Iterator[tuple[str, ndarray]]:
        """Iterate over pairs of dotted name and array for the arrays that are trained, each array
        once; ``dict(model.named_parameters())["fc.weight"]`` is one. Frozen ones (``requires_grad
        = False``) are among them, as in torch.
        """
        return ((n, a) for n, a in self.state().items() if a.trainable)

    def parameters(self) -> Iterator[ndarray]:
        """Iterate over the arrays that are trained, also frozen ones, each once."""
        return (a for _, a in self.named_parameters())

    def summary(self) -> Summary:
        """Return the models inside with their arrays and numbers of parameters; printed, a table.

        >>> import meta
        >>> meta.model.Linear(3, 2).summary().parameters
        8
        """
        return summarize(self)

    def load_state_dict(
        self, state: Mapping[str, object], *, strict: bool = True, assign: bool = False
    ) -> Unmatched:
        """Overwrite arrays of the state, in place, by name; returns what was left out.

        state: array-like values by name, for example torch's ``state_dict()``. Values are converted
        to the dtype and device of the model's arrays: floats to floats, ints to ints. An array that
        the model has under several names is accepted under any; where several are given, they must
        be equal. Float32 masters that an optimizer keeps of half precision arrays take the values,
        too. What models inside declare in ``not_kept`` is accepted and left out; names in
        ``renamed`` are accepted as well.

        With ``strict``, every array must be given and every name known; otherwise what fits by name
        is loaded, if anything does. Raises FormatError, which lists all missing and unknown names,
        other shapes and kinds of numbers at once, before anything is written.

        With ``assign``, arrays share the memory of the values that are of their dtype and on their
        device, instead of a copy of it.
        """
        return load(self, state, strict, assign)

    def to(self, target: object = None, *, device: object = None, dtype: object = None) -> Model:
        """Move all arrays to a device, and floating point ones to a dtype, in place; returns the
        model. ``target`` is one of both: ``model.to("cuda")``, ``model.to("bfloat16")``.

        Arrays that were shared stay shared; their gradients move, too. What was compiled before
        still refers to the old arrays, and so does an optimizer: make it afterwards.
        """
        device, dtype = destination(target, device, dtype)
        if dtype is not None and not is_float(canonical(dtype)):
            raise ArgumentError("a model's dtype is floating point", found=canonical(dtype))
        moved: dict[int, ndarray] = {}
        masters: list[tuple[ndarray, ndarray]] = []
        for name, array in self.state().items():
            kind = dtype if is_float(array.dtype) else None
            if deferred(array) is not None:
                new = moved_deferred(array, device, kind)
            else:
                own = array.detach()  # what is moved is a leaf again
                new = own.to(device=device, dtype=kind)
                new = array if new is own else new
            new.name = array.name or name
            if new is not array:
                new.train_like(array)
            if new is not array and array.grad is not None:
                new.grad, array.grad = array.grad.to(device=new.device, dtype=new.dtype), None
            moved[id(array)] = new
            masters += [(new, m) for m in masters_of(array) if new is not array]
        for array, master in masters:
            add_master(array, moved.get(id(master), master))
        for model in self.models():
            for key, value in list(vars(model).items()):
                arrays, structure = tree.flatten(value, lambda v: isinstance(v, ndarray))
                if arrays and not key.startswith("_"):
                    setattr(model, key, tree.unflatten(structure, [moved[id(a)] for a in arrays]))
        return self

    def signature(self) -> tuple[Any, ...]:
        """Return what a trace of this model depends on besides its arguments.

        Plain Python values count by value; arrays, models and other objects by identity.
        """
        parts: list[Any] = [self._training, rules_in_force(), before_autodiff_key()]
        for path, value in self.attributes():
            if isinstance(value, ndarray):
                # An array that is gone and whose id another one has took no part in the program
                # but by its type.
                parts.append((path, id(value), value.key, value.requires_grad))
            elif isinstance(value, Model):
                parts.append((path, tree.IdentityKey(value), value._training, value._checkpointed))
            elif isinstance(value, dict | list | tuple):
                parts.append((path, type(value)))
            else:
                parts.append((path, tree.fingerprint(value)))
        return tuple(parts)

    def __repr__(self) -> str:
        return _to_text(self, set())

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def _paths(path: str, value: Any, above: tuple[int, ...]) -> Iterator[tuple[str, ndarray | Model]]:
    if isinstance(value, ndarray | Model):
        yield path, value
    inner = _children(value)
    if inner and id(value) not in above:  # a circle is walked once
        for name, member in inner:
            yield from _paths(f"{path}.{name}" if path else name, member, (*above, id(value)))


def _children(value: Any) -> list[tuple[str, Any]]:
    """Return what a model or container holds, by name; nothing for anything else."""
    if isinstance(value, Model):
        return list(value.members().items())
    if isinstance(value, dict):
        return [(str(k), v) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [(str(i), v) for i, v in enumerate(value)]
    return []


def _to_text(model: Model, before: set[int]) -> str:
    """Return a model as text: plain attributes, types of arrays, models inside (each once)."""
    if id(model) in before:
        return f"{type(model).__name__}(...)"
    before.add(id(model))
    own, inner = [], []
    stack = list(reversed(model.members().items()))
    while stack:
        name, value = stack.pop()
        if isinstance(value, Model):
            plain = type(value).__repr__ is Model.__repr__
            text = _to_text(value, before) if plain else repr(value)
            inner.append(f"  {name}: {text}".replace("\n", "\n  "))
        elif isinstance(value, ndarray):
            own.append(f"{name}={value.dtype}{list(value.shape)}")
        elif isinstance(value, bool | int | float | str) or _is_plain(value):
            own.append(f"{name}={value!r}")
        elif inside := _children(value):
            if all(isinstance(v, ndarray) for _, v in inside):
                own.append(f"{name}={len(inside)} arrays")
            else:
                stack += [(f"{name}.{k}", v) for k, v in reversed(inside)]
    body = "\n".join(["," if own else "", *inner]) + "\n" if inner else ""
    return f"{type(model).__name__}({', '.join(own)}{body})"


def _is_plain(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, bool | int | float | str) for v in value)
