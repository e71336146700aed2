"""The `template` dialect: kernels that are written as source text, for CUDA and for ROCm.

::

    template.add(
        add_one,
        body='''
    __global__ void add_one({{ out.type }}* out, const {{ x.type }}* x, {{ index }} n) {
      {{ index }} i = ({{ index }})blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) out[i] = {{ out.down }}({{ x.up }}(x[i]) + 1);
    }''',
        launch="add_one<<<ceil_div({{ x.size }}, 256), 256>>>(out, x, {{ x.size }});",
    )

The author writes device code and how it is launched, in Jinja's language. The signature of the host
function, its declaration and its call follow from the operator's slots (`names.py`), and what
differs between the targets from a `TargetSpec` (`target.py`). Each piece can be written instead
(`pieces.py`), also by the keys of `template.pieces` (``"rocm.add_one.func_decl"``, `keys.py`).

On CUDA the text runs: NVRTC compiles the device code, and the host code is interpreted
(`host_parser.py`, `program.py`), which launches the kernels. For ROCm it is generated and checked.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from meta.base.source import caller_span
from meta.dialect.core import HANDWRITTEN, Dialect, DialectOp
from meta.dialect.core.preference import forget
from meta.op.core.op import Op
from meta.op.core.registration import require_function
from meta.runtime import nvrtc

if TYPE_CHECKING:
    from meta.dialect.core.plevel import Levels
    from meta.dialect.template.kernel import Filter, Listing, Piece, Template
    from meta.dialect.template.pieces import Source


def probe() -> str | None:
    """Return why source text cannot run here, or None."""
    if torch.version.hip is not None:
        return "on ROCm source text is generated and checked, not run: template.source(...)"
    if not torch.cuda.is_available():
        return "no CUDA device"
    return nvrtc.refusal()


class TemplateDialect(Dialect):
    """The dialect of kernels that are written as source text."""

    def add(
        self,
        base: Op,
        body: str | Path | None = None,
        launch: str | Path | None = None,
        *,
        configs: Listing = (),
        filter: Filter | None = None,
        function: Piece | None = None,
        signature: Piece | None = None,
        declaration: Piece | None = None,
        call: Piece | None = None,
        plevel: Levels | None = None,
        when: Any = None,
    ) -> DialectOp:
        """Register source text as the kernel of an operator.

        All texts are Jinja templates: a text, or a `Path` of a file that has it. What they see are
        the operator's slots by name, ``out``, and the names of `names.RESERVED`.

        Parameters
        ----------
        body: device code: kernels (``__global__``), and functions and types of theirs.
        launch: the body of the host function, which launches them. Its language is the part of C++
            that `host_parser` reads. ``ceil_div(a, b)`` rounds up.
        configs: values for names that the texts use, ``[{"threads": 128}, {"threads": 256}]``; the
            first one that applies is the default, the others are what measuring tries. Or a
            function of the call that returns them.
        filter: a function of a configuration and the call that says whether it applies.
        function, signature, declaration, call: a piece that is not to be derived: a template, or a
            function of the names. What a template of a piece sees besides: ``body`` and ``launch``,
            rendered, and the pieces before it, in the order of `pieces.PIECES`.
        plevel: another level than HANDWRITTEN; when: returns a reason to decline a call, or None.

        Raises RegistrationError for a name in a template that nothing defines, with its line; for
        a kernel without body or launch; and for an operator that has one already.
        """
        from meta.dialect.template.kernel import Template
        from meta.dialect.template.source_kernels import maker

        site = caller_span()
        if when is not None:
            require_function(when, f"when= of source text of {getattr(base, 'name', base)!r}", site)
        overrides = {
            "function": function,
            "signature": signature,
            "declaration": declaration,
            "call": call,
        }
        kernel = Template(base, body, launch, configs, filter, overrides, site)
        made = self.register(base, maker(kernel, when), site, plevel)
        self.kernels[base.name] = kernel
        self.changed()
        return made

    @cached_property
    def kernels(self) -> dict[str, Template]:
        """The registered kernels by the operator's name."""
        return {}

    @cached_property
    def pieces(self) -> MutableMapping[str, Any]:
        """The pieces of all kernels by key, ``"cuda.add_one.gen_function"``: to read, and to write
        others; see `keys.py`.
        """
        from meta.dialect.template.keys import Pieces

        return Pieces(self)

    def source(
        self,
        base: Op,
        *args: Any,
        target: str = "cuda",
        config: Mapping[str, int | str] | None = None,
        **kwargs: Any,
    ) -> Source:
        """Return the source of a call: of arrays, or of types in their place.

        config: a configuration other than the default one. Needs no device. Raises UnknownName for
        an operator without source text and for an unknown target, and DispatchError for a call that
        the kernel does not serve.
        """
        from meta.dialect.template.source_kernels import source_of

        return source_of(self, base, args, kwargs, target, config)

    def changed(self) -> None:
        """Forget what was decided, and what was measured: a text is another one."""
        self.registered_text = "\0".join(self.kernels[name].text() for name in sorted(self.kernels))
        forget()

    def compiles_anew(self, base: Op) -> bool:
        """Return whether a call in new shapes compiles a kernel: extents are numbers at run
        time.
        """
        return False

    def remove(self, base: Op) -> None:
        """Take a kernel out again, for tests and for reloading in a notebook."""
        base.aspects.dialect_ops.remove(self.ops.pop(base.name))
        del self.kernels[base.name]
        self.changed()


template = TemplateDialect(
    "template",
    devices=("cuda",),
    plevel=HANDWRITTEN,
    probe=probe,
    package=__name__,
    restorer=f"{__name__}.launcher",
    compiles=True,
)
