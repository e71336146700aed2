"""The programs of generation: a step reads tokens of each text, writes the cache and chooses the
next one, all on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from meta import op
from meta.language.cache import Cache
from meta.language.decoder import Decoder
from meta.language.sampling import Chooser
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core.function import device_of
from meta.runtime.buffer_replacement import replace_buffer
from meta.runtime.ndarray import ndarray
from meta.vm import compile as compile_program

BUCKET, LARGEST_BUCKET = 16, 512
"""Prompts are padded to powers of two between these lengths, then to multiples of the latter."""
Choices = tuple[ndarray, ...]
"""Tokens [n] and the logarithms of their probabilities; or [n, steps] of both, and how many were
guessed, int64 [n], of which and one more are the texts'.
"""
Rows = dict[str, Any]
"""Arrays of `Sampling.rows`, and "bias" [n, vocabulary] if there is any."""


class State:
    """The arrays that programs for so many rows and slots read and write.

    caches: keys and values of each layer, by turns. table: of their blocks, if there are. lengths:
    int64 [n], how many tokens of a row are read. known: bool [n, vocabulary], the tokens of
    prompts; counts: int32, how often each was generated; both None without penalties.
    """

    def __init__(self, decoder: Decoder, cache: Cache, chooser: Chooser) -> None:
        rows, where = len(cache.tokens), cache.arrays[0].device
        shape = rows, decoder.config.vocab_size
        self.caches = [ndarray(x) for x in cache.arrays]
        for array in self.caches:
            array.placement = decoder.cache_placement(array.shape[0], array.shape[2])
        self.table = None if cache.table is None else ndarray(cache.table.clone())
        self.lengths = ndarray(torch.zeros(rows, dtype=torch.int64, device=where))
        self.known = self.counts = None
        if chooser.penalties:
            self.known = ndarray(torch.zeros(shape, dtype=torch.bool, device=where))
            self.counts = ndarray(torch.zeros(shape, dtype=torch.int32, device=where))

    def begin(self, cache: Cache) -> None:
        """Start from a cache, whose texts are prompts."""
        for array, tensor in zip(self.caches, cache.arrays, strict=True):
            if array.tensor is not tensor:
                replace_buffer(array, tensor)
        if self.table is not None and cache.table is not None:
            self.table.tensor.copy_(cache.table)
        self.lengths.tensor.copy_(torch.tensor(cache.lengths))
        if self.known is not None and self.counts is not None:
            known = torch.zeros(self.known.shape, dtype=torch.bool)
            for row, text in zip(known, cache.tokens, strict=True):
                row[text] = True
            self.known.tensor.copy_(known)
            self.counts.tensor.zero_()


class Step(Model):
    """Reads tokens, and chooses the next one of each row."""

    def build(self, decoder: Decoder, state: State, chooser: Chooser, fresh: bool) -> None:
        """Bind the arrays of a state."""
        self.decoder, self.chooser, self.fresh = decoder, chooser, fresh
        self.keys, self.values = state.caches[::2], state.caches[1::2]
        self.lengths, self.known, self.counts = state.lengths, state.known, state.counts
        self.table = state.table

    def scores(self, tokens: Any, read: Any) -> Any:
        """Return the scores [n, vocabulary] behind the first ``read`` [n] of tokens [n, steps]."""
        start = self.lengths
        found = self.read(tokens, read)
        op.assign(self.lengths, op.add(start, read))
        return found

    def read(self, tokens: Any, read: Any, every: bool = False) -> Any:
        """Return what `Decoder.scores` does, behind what was read before."""
        cache = list(zip(self.keys, self.values, strict=True))
        more = self.fresh, self.table, every
        return self.decoder.scores(tokens, self.lengths, read, cache, *more)

    def choose(self, scores: Any, rows: Rows) -> tuple[Any, Any]:
        """Return tokens [n], and the logarithms of their probabilities; scores: of what is behind
        what was read.
        """
        token, logprob = self.chosen(scores, rows, self.lengths, self.known, self.counts)
        if self.chooser.penalties:
            op.assign(self.counts, op.add(self.counts, self.ones(token)))
        return token, logprob

    def chosen(self, scores: Any, rows: Rows, at: Any, known: Any, counts: Any) -> tuple[Any, Any]:
        """Return tokens [n], and the logarithms of their probabilities before the options.

        at: int64 [n], where in its text each token is. known, counts: as of `State`.
        """
        token = self.chooser.chosen(self.changed(scores, rows, known, counts), rows, at)
        if self.chooser.takes_best:
            best = op.max(scores, -1)
        else:
            row = op.arange(0, scores.shape[0], 1, "int64", device_of(scores))
            best = op.adv_index((scores, row, token))
        return token, op.subtract(best, op.logsumexp(scores, -1))

    def changed(self, scores: Any, rows: Rows, known: Any, counts: Any) -> Any:
        """Return scores with bias and penalties."""
        if self.chooser.biased:
            scores = op.add(scores, rows["bias"])
        if self.chooser.penalties:
            scores = self.chooser.penalized(scores, rows, known, counts)
        return scores

    def ones(self, tokens: Any) -> Any:
        """Return int32 [..., vocabulary]: 1 at each token."""
        return op.one_hot(tokens, self.chooser.vocabulary, 1, 0, -1, "int32")

    def both(self, tokens: Any, read: Any, rows: Rows) -> tuple[Any, Any]:
        """Read and choose."""
        return self.choose(self.scores(tokens, read), rows)


class StepProgram(Model):
    """A part of a step as a program: the name of a method, and its arguments that are no arrays."""

    def build(self, step: Step, part: str, constants: dict[str, Any]) -> None:
        """Name the method."""
        self.step, self.part, self.constants = step, part, constants

    @trace
    def forward(self, *arguments: Any) -> Any:
        """Run it."""
        return getattr(self.step, self.part)(*arguments, **self.constants)


class Runner:
    """Compiled steps for so many rows and slots, and one way to choose. state: that of another
    runner, where several ways to choose go on from one another.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: Cache,
        chooser: Chooser,
        kind: type[Step],
        state: State | None = None,
    ) -> None:
        self.state = State(decoder, cache, chooser) if state is None else state
        self.vocabulary = chooser.vocabulary
        self._steps = [kind(decoder, self.state, chooser, fresh) for fresh in (False, True)]
        self._programs: dict[tuple[Any, ...], Any] = {}

    def __call__(self, part: str, *arguments: Any, fresh: bool = False, **constants: Any) -> Any:
        """Run a part of a step, compiled for the shapes of its arguments."""
        shapes = tuple(x.shape for x in arguments if isinstance(x, ndarray))
        key = part, fresh, shapes, *constants.items()
        if key not in self._programs:
            model = StepProgram(self._steps[fresh], part, constants).train(False)
            self._programs[key] = compile_program(model, *arguments)
        return self._programs[key](*arguments)


class Structure:
    """What a decoder, and the models and containers inside, hold: to see that it is the same still,
    in a tenth of the time that the names of all arrays take.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._sizes: list[tuple[Any, int]] = []
        self._members: list[tuple[Any, Any, Any]] = []
        self._keys: list[tuple[ndarray, Any]] = []
        stack, seen = list[Any]([decoder]), set[int]()
        while stack:
            outer = stack.pop()
            if id(outer) in seen:
                continue
            seen.add(id(outer))
            if isinstance(outer, ndarray):
                self._keys.append((outer, outer.key))
                continue
            is_model = isinstance(outer, Model)
            members, holder = (outer.members(), vars(outer)) if is_model else (outer, outer)
            own = list(members.items() if isinstance(members, dict) else enumerate(members))
            self._sizes.append((holder, len(holder)))
            self._members += [(holder, name, value) for name, value in own]
            stack += [v for _, v in own if isinstance(v, ndarray | Model | dict | list | tuple)]

    def is_same(self) -> bool:
        """Whether all is as it was; perhaps it is where this is False."""
        try:
            return (
                all(len(holder) == size for holder, size in self._sizes)
                and all(holder[name] is value for holder, name, value in self._members)
                and all(array.key is key for array, key in self._keys)
            )
        except KeyError:  # also of a model that says itself what its members are
            return False


class Compiled:
    """What a decoder has compiled, and the memory of caches that nobody keeps. Who generates
    borrows them, so that texts that are written by turns do not write over each other's.
    """

    def __init__(self, arrays: tuple[Any, ...]) -> None:
        self.arrays = arrays
        self.structure: Structure | None = None
        self._runners: dict[tuple[Any, ...], list[Runner]] = {}
        self._scratch: dict[tuple[int, int], list[list[torch.Tensor]]] = {}

    @staticmethod
    def of(decoder: Decoder) -> Compiled:
        """Return that of a decoder, anew once its arrays are others."""
        found: Compiled | None = decoder.compiled
        if found is not None and found.structure is not None and found.structure.is_same():
            return found
        arrays = tuple((id(a), a.placement) for a in decoder.state().values())
        if found is None or found.arrays != arrays:
            found = decoder.compiled = Compiled(arrays)
        found.structure = Structure(decoder)
        return found

    @contextmanager
    def scratch(self, decoder: Decoder, rows: int, slots: int) -> Iterator[Cache]:
        """Lend an empty cache."""
        cache, free = Cache(rows), self._scratch.setdefault((rows, slots), [])
        cache.arrays = free.pop() if free else []
        cache.reserve(decoder, slots)
        try:
            yield cache
        finally:
            free.append(cache.arrays)

    @contextmanager
    def runner(
        self, decoder: Decoder, cache: Cache, chooser: Chooser, kind: type[Step] = Step
    ) -> Iterator[Runner]:
        """Lend what runs the steps of a kind, which starts from the cache."""
        shape = cache.arrays[0].shape if cache.arrays else ()
        key = len(cache.tokens), cache.slots, shape, chooser, kind
        free = self._runners.setdefault(key, [])
        runner = free.pop() if free else Runner(decoder, cache, chooser, kind)
        runner.state.begin(cache)
        try:
            yield runner
        finally:
            free.append(runner)


class Batch:
    """Texts that a decoder reads and writes together.

    Parameters
    ----------
    decoder, cache: of the texts, whose tokens the cache has; None for one that nobody keeps.
    numbers: arrays of the rows, as `Sampling.rows` returns them. change: of scores, by the host.
    """

    def __init__(
        self,
        decoder: Decoder,
        texts: list[list[int]],
        cache: Cache | None,
        slots: int,
        chooser: Chooser,
        numbers: Mapping[str, np.ndarray],
        kind: type[Step] = Step,
        change: Callable[[ndarray], ndarray] | None = None,
    ) -> None:
        self._lent, compiled = ExitStack(), Compiled.of(decoder)
        if cache is None:
            cache = self._lent.enter_context(compiled.scratch(decoder, len(texts), slots))
            cache.tokens = texts
        self.cache, self._change = cache, change
        self.runner = self._lent.enter_context(compiled.runner(decoder, cache, chooser, kind))
        self.state, self.device = self.runner.state, cache.arrays[0].device
        self.one = self.array(np.ones(len(texts), np.int64))
        needed = chooser.needed(numbers)
        self.rows = {name: self.array(values) for name, values in needed.items()}

    def close(self) -> None:
        """Give back what was lent."""
        self._lent.close()

    def array(self, values: Any, dtype: Any = None) -> ndarray:
        """Return numbers on the device."""
        return ndarray(torch.as_tensor(np.asarray(values, dtype)).to(self.device))

    def read_prompts(self) -> Choices:
        """Read what is unread of all texts; return the next tokens, and their logprobs."""
        return self.read(*self._unread())

    def prompt_scores(self) -> ndarray:
        """Read what is unread of all texts; return the scores of what is next."""
        tokens, read, fresh = self._unread()
        found: ndarray = self.runner("scores", tokens, read, fresh=fresh)
        return found

    def _unread(self) -> tuple[ndarray, ndarray, bool]:
        """Return what is unread, padded, how many tokens that are, and whether it is all."""
        cache = self.cache
        unread = [t[n:] for t, n in zip(cache.tokens, cache.lengths, strict=True)]
        longest = max(map(len, unread))
        tokens = np.zeros((len(unread), bucket(longest)), np.int64)
        for row, text in zip(tokens, unread, strict=True):
            row[: len(text)] = text
        fresh = longest > 1 and not any(cache.lengths)
        return self.array(tokens), self.array([len(t) for t in unread]), fresh

    def read(self, tokens: ndarray, read: ndarray, fresh: bool = False) -> Choices:
        """Read tokens [n, steps], of which ``read`` [n] belong to the texts; return as above."""
        if self._change is None:
            found: Choices = self.runner("both", tokens, read, self.rows, fresh=fresh)
        else:
            scores = self._change(self.runner("scores", tokens, read, fresh=fresh))
            found = self.runner("choose", scores, self.rows)
        return found

    def read_one(self, found: Choices) -> Choices:
        """Read the tokens that were found; return the next ones."""
        return self.read(op.reshape(found[0], (-1, 1)), self.one)


def bucket(length: int) -> int:
    """Return what a prompt is padded to; one token is read as those that are written."""
    if length == 1:
        return 1
    if length > LARGEST_BUCKET:
        return -(-length // LARGEST_BUCKET) * LARGEST_BUCKET
    return int(max(BUCKET, 1 << (length - 1).bit_length()))
