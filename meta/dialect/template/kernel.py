"""A kernel that is written as source text: its templates, configurations and pieces.

`Template.source` is all that there is to it: from a call, a target and a configuration to text.
Launching is another file's (`launcher.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Any

from meta.base.errors import MetaError, RegistrationError, TypeInferError
from meta.base.registry import nearest
from meta.base.source import Span, definition_span, outermost_user_span, python_function
from meta.dialect.core import Config, Unsupported
from meta.dialect.core.openv import config_text
from meta.dialect.template import pieces
from meta.dialect.template.device_code import kernels_of
from meta.dialect.template.language import Text, environment
from meta.dialect.template.names import NeedsExtents, known_names, names_of
from meta.dialect.template.pieces import PIECES, Source, Written
from meta.dialect.template.target import TARGETS, TargetSpec
from meta.op.core.call import CallValues
from meta.op.core.op import Op
from meta.op.core.registration import require_function, require_op

Configuration = Mapping[str, int | str]
"""A configuration as an author writes it: a value for each name that the templates use."""
Listing = Sequence[Configuration] | Callable[[CallValues], Sequence[Configuration]]
Filter = Callable[[Configuration, CallValues], bool]
Piece = str | Path | Callable[[Mapping[str, Any]], str]
"""A template: text, a file that has it, or (for a piece) a function of the names."""
BODY = ("body", "launch")
CONFIG, FILTER = "config", "filter"
MOST = 4096
"""Configurations of a kernel, at most."""


class Template:
    """The kernel of one operator as source text.

    Attributes
    ----------
    op: the operator. overrides: what stands for a derived piece, for the listed configurations or
    for their filter, by target (None: for all targets) and name.
    """

    def __init__(
        self,
        op: Op,
        body: str | Path | None,
        launch: str | Path | None,
        configs: Listing,
        filter: Filter | None,
        overrides: Mapping[str, Piece | None],
        site: Span,
    ) -> None:
        require_op(op, "source text", site)
        self.op, self.site = op, site
        self._title = f"template.{op.name}"
        self.overrides: dict[tuple[str | None, str], Any] = {}
        self._checked: set[tuple[Text, tuple[str, ...]]] = set()
        self._body = None if body is None else self._text("body", body)
        self._launch = None if launch is None else self._text("launch", launch)
        for piece, given in overrides.items():
            if given is not None:
                self.overrides[None, piece] = self.written(piece, given)
        if (None, "function") not in self.overrides:
            self._require_whole()
        if filter is not None:
            require_function(filter, f"filter= of {self._title}", site)
        if not callable(configs):
            configs = self._few(configs)
        self.overrides[None, CONFIG] = configs
        self.overrides[None, FILTER] = filter
        if not callable(configs):
            names = self._option_names(configs)
            for text in (self._body, self._launch, *self.overrides.values()):
                if isinstance(text, Text):
                    self._check(text, names)

    def _require_whole(self) -> None:
        """Raise RegistrationError unless there are device code and a launch."""
        for name, text in zip(BODY, (self._body, self._launch), strict=True):
            if text is not None:
                continue
            kernels = [] if self._body is None else list(kernels_of(self._body.source))
            example = f"{kernels[0]}<<<blocks, threads>>>(...);" if kernels else "..."
            raise RegistrationError(
                f"{self._title} has no {name}",
                expected=f"{name}=..., or function=... that has all of it",
                hint=f"launch={example!r}" if name == "launch" else None,
                span=self.site,
            )

    def _text(self, name: str, given: str | Path) -> Text:
        if isinstance(given, Path):
            try:
                return Text(str(given), given.read_text("utf-8"), self.site)
            except (OSError, UnicodeDecodeError) as error:
                raise RegistrationError(
                    f"{self._title}, {name}: the file cannot be read: {error}", span=self.site
                ) from None
        if not isinstance(given, str):
            raise RegistrationError(
                f"{self._title}, {name}: this is no text", found=f"{given!r:.200}", span=self.site,
                expected="a template as a string, or the Path of a file that has one",
            )  # fmt: skip
        return Text(f"{self._title}, {name}", given, self.site)

    def written(self, piece: str, given: Piece) -> Written:
        """Return a piece as an author gives it; RegistrationError for a wrong one."""
        return given if callable(given) else self._text(piece, given)

    def _option_names(self, configs: Sequence[Configuration]) -> tuple[str, ...]:
        """Return the names of configurations; RegistrationError unless all have the same ones."""
        names = tuple(sorted(configs[0])) if configs else ()
        for config in configs:
            odd = [f"{n}={v!r:.50}" for n, v in config.items() if not isinstance(v, int | str)]
            if odd:
                raise RegistrationError(
                    f"a configuration of {self._title} has {', '.join(odd)}",
                    expected="whole numbers and words: programs name configurations",
                    span=self.site,
                )
            if tuple(sorted(config)) != names:
                raise RegistrationError(
                    f"the configurations of {self._title} do not have the same names",
                    expected=f"{', '.join(names)}, in each",
                    found=f"{dict(config)}",
                    span=self.site,
                )
        taken = [n for n in names if n in known_names(self.op, ())]
        if taken:
            raise RegistrationError(
                f"configurations of {self._title} name what templates have already",
                found=", ".join(taken),
                span=self.site,
            )
        return names

    def _few(self, stated: Any) -> list[Configuration]:
        """Return configurations as a list; RegistrationError for what is none, and too many."""
        sound = isinstance(stated, Iterable) and not isinstance(stated, str | Mapping)
        found = list(islice(stated, MOST + 1)) if sound else []
        if not sound or len(found) > MOST or not all(isinstance(c, Mapping) for c in found):
            raise RegistrationError(
                f"the configurations of {self._title} are no list of at most {MOST} mappings",
                expected='such as [{"threads": 128}, {"threads": 256}]',
                found=f"more than {MOST}" if len(found) > MOST else f"{stated!r:.200}",
                span=self.site,
            )
        return found

    def _check(self, text: Text, options: tuple[str, ...]) -> None:
        if (text, options) not in self._checked:
            known = {*known_names(self.op, options), *environment().globals, *BODY, *PIECES}
            text.check(known)
            self._checked.add((text, options))

    def override(self, target: str | None, name: str) -> Any:
        """Return what stands for a piece, the configurations or the filter on a target; None: what
        is derived.
        """
        own = self.overrides.get((target, name))
        return self.overrides.get((None, name)) if own is None else own

    def configs(self, call: CallValues, target: TargetSpec) -> list[Config]:
        """Return the configurations that apply to a call, the default one first; Unsupported if
        there are some and none applies.
        """
        listed = self.override(target.name, CONFIG)
        keep = self.override(target.name, FILTER)
        try:
            listed = self._few(listed(call)) if callable(listed) else listed
            applies = [c for c in listed if keep is None or keep(c, call)]
        except TypeInferError as error:
            if all(t.is_static for t in call.tensors()):
                raise
            raise NeedsExtents(f"its configurations depend on extents: {error.what}") from None
        except (MetaError, Unsupported):
            raise
        except Exception as error:
            raise RegistrationError(
                f"configs= or filter= of {self._title} raises {type(error).__name__}: {error}",
                found=call,
                span=outermost_user_span(error.__traceback__) or self.site,
            ) from error
        self._option_names(listed)
        if not listed:
            return [()]
        if not applies:
            raise Unsupported(f"its filter leaves none of {len(listed)} configurations")
        return [tuple(sorted(c.items())) for c in applies]

    def config_named(self, config: Config, call: CallValues, target: TargetSpec) -> Config:
        """Return a configuration that applies to a call, () the default one; Unsupported for one
        that does not.
        """
        known = self.configs(call, target)
        if not config:
            return known[0]
        if config not in known:
            texts = [config_text(c) for c in known]
            raise Unsupported(
                f"this kernel has no configuration {config_text(config)}, "
                f"only {', '.join(texts)}; {nearest(config_text(config), texts)}"
            )
        return config

    def source(self, call: CallValues, target: TargetSpec, config: Config = ()) -> Source:
        """Return the source of a call in a configuration, () for the default one.

        Raises Unsupported for a call that it does not serve: a dtype without a type in source, a
        configuration that does not apply, an extent that is written as a number and is none.
        """
        options = dict(self.config_named(config, call, target))
        known = names_of(call, target)
        reserved = self.op.schema.reserved
        dtypes = tuple(t.dtype for t in (*call.tensors(), *call.outputs))
        parameters = [f"{type_} {name}" for type_, name in known.parameters]
        arguments = [name for _, name in known.parameters]
        names: dict[str, Any] = {
            **known.slots,
            reserved("outputs"): list(known.results),
            reserved("inputs"): list(known.values),
            reserved("name"): f"launch_{self.op.name}",
            reserved("index"): known.index,
            reserved("stream"): "stream",
            reserved("target"): target,
            reserved("prefix"): target.prefix,
            reserved("headers"): target.included(dtypes),
            reserved("parameters"): ", ".join(parameters),
            reserved("arguments"): ", ".join(arguments),
            **options,
        }
        for name, text in zip(BODY, (self._body, self._launch), strict=True):
            names[name] = "" if text is None else self._rendered(text, names, tuple(options))
        names["launch"] = pieces.completed(names["launch"])
        names["body"] = pieces.with_helpers(names["body"], names["launch"])
        derived: dict[str, Callable[[], str]] = {
            "signature": lambda: pieces.listed(
                f"void {names[reserved('name')]}", [*parameters, f"{target.stream} stream"], ""
            ),
            "function": lambda: pieces.function_piece(
                names[reserved("headers")], names["body"], names["signature"], names["launch"]
            ),
            "declaration": lambda: f"{names['signature']};",
            "call": lambda: pieces.listed(names[reserved("name")], [*arguments, "stream"], ";"),
        }
        for piece in PIECES:
            own = self.override(target.name, piece)
            if own is None:
                names[piece] = derived[piece]()
            elif isinstance(own, Text):
                names[piece] = self._rendered(own, names, tuple(options))
            else:
                names[piece] = self._computed(piece, own, names)
        values = pieces.values_of((*known.values, *known.results))
        written = tuple(
            i
            for i, v in enumerate((*known.values, *known.results))
            if getattr(v, "is_written", False)
        )
        texts = {piece: names[piece] for piece in PIECES}
        return Source(target.name, self._title, **texts, config=options, values=values,
                      written=written)  # fmt: skip

    def _computed(self, piece: str, function: Any, names: Mapping[str, Any]) -> str:
        """Return a piece that an author's function computes; RegistrationError if it fails."""
        what = f"{self._title}, {piece}: its function"
        try:
            found = function(names)
        except (MetaError, Unsupported):
            raise
        except Exception as error:
            raise RegistrationError(
                f"{what} raises {type(error).__name__}: {error}",
                span=outermost_user_span(error.__traceback__) or self.site,
            ) from error
        if not isinstance(found, str):
            raise RegistrationError(
                f"{what} returns no text", found=f"{found!r:.100}", span=definition_span(function)
            )
        return found

    def text(self) -> str:
        """Return all that is written of the kernel; of a function, what it was compiled to."""
        parts = [self.op.name]
        for given in (self._body, self._launch, *self.overrides.values()):
            if isinstance(given, Text):
                parts.append(given.source)
            else:
                function = python_function(given) if callable(given) else None
                parts.append(repr(given) if function is None else _code_text(function.__code__))
        return "\0".join(parts)

    def _rendered(self, text: Text, names: Mapping[str, Any], options: tuple[str, ...]) -> str:
        self._check(text, options)
        return text.render(names)


def _code_text(code: CodeType) -> str:
    """Return what a function was compiled to, the same in each process."""
    inner = [_code_text(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return "\0".join([code.co_code.hex(), *code.co_names, *inner])


def targets() -> list[TargetSpec]:
    """Return the targets for which source is generated."""
    return TARGETS.values()
