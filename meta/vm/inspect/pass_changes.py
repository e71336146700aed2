"""What the passes did to a program, as HTML: its text before and after each, the changes marked.

Variables keep their names from pass to pass, where `meta.ir.text` numbers them anew each time: what
a pass left alone is then the same text, and a line is changed only if the pass changed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from meta import passes
from meta.base.html import Html, details, join, tag, time_text
from meta.ir import Function, Module, Var
from meta.ir.expr import Block
from meta.ir.names import Names
from meta.ir.pictures import line_html
from meta.ir.printer import Printer
from meta.ir.visit import binders
from meta.passes import PassRecord

CONTEXT = 2
"""Lines that are seen before and behind a change; more open at a click."""
MAX_UNCHANGED = 4000
"""Unchanged lines of all passes on a page; of further ones it says only how many there are."""
MAX_CHANGED = 800
"""Changed lines of a pass."""
_LONGEST = 240
"""Characters of what is unchanged in a line, or of a whole new one twice as many."""
_TOKEN = re.compile(r"[\w.%@]+|\s+|[^\w\s]")


class SteadyPrinter(Printer):
    """Prints the modules of one history, in each of which a variable has the same name."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, tuple[Names, dict[Var, str]]] = {}
        self._function = ""

    def lines_of(self, module: Module) -> list[str]:
        """Return the text of a module, without the bytes of its constants."""
        self.lines = []
        for definition in module.types.values():
            self.separate()
            self.definition(definition)
        for name, function in module.functions.items():
            self.separate()
            self._function = name
            self.top_level(name, function)
        return self.lines

    def names_of(self, name: str, function: Function) -> dict[Var, str]:
        """Return the names that the variables of a function have in the text of its module."""
        self._function = name
        self.name_all(function)
        return self.var_names

    def name_all(self, root: Function | Block) -> None:
        self.names, self.var_names = self._known.setdefault(self._function, (Names(), {}))
        for var in binders(root):
            self.name(var)


class PassChanges:
    """What one pass did: its record, and the lines before and after.

    steps: pairs of an old line and a new one, in order; None where there is none, and the same line
    twice where nothing changed.
    """

    def __init__(self, record: PassRecord, before: Sequence[str], after: Sequence[str]) -> None:
        self.record = record
        self.steps = list(_steps(before, after))
        changed = [(a, b) for a, b in self.steps if a != b]
        self.added = sum(a is None for a, _ in changed)
        self.removed = sum(b is None for _, b in changed)
        self.rewritten = len(changed) - self.added - self.removed

    def summary(self) -> str:
        """Return the numbers of lines that changed."""
        counts = (("+", self.added), ("−", self.removed), ("~", self.rewritten))
        return " ".join(f"{sign}{count}" for sign, count in counts if count) or "no change"


def changes(history: Sequence[PassRecord]) -> list[PassChanges]:
    """Return what each pass did; the first record is the program that they were given."""
    printer = SteadyPrinter()
    before = printer.lines_of(history[0].module)
    module, found = history[0].module, []
    for record in history[1:]:
        same = record.module is module
        after = before if same else printer.lines_of(record.module)
        found.append(PassChanges(record, before, after))
        before, module = after, record.module
    return found


def _steps(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str | None, str | None]]:
    """Align two texts: equal lines first, then lines that bind the same variable."""
    if before is after:
        yield from zip(before, after, strict=True)
        return
    for kind, i, j, k, m in SequenceMatcher(None, before, after, False).get_opcodes():
        if kind == "equal":
            yield from zip(before[i:j], after[k:m], strict=True)
            continue
        old, new = before[i:j], after[k:m]
        heads = SequenceMatcher(None, [*map(_head, old)], [*map(_head, new)], False)
        for same, a, b, c, d in heads.get_opcodes():
            if same == "equal":
                yield from zip(old[a:b], new[c:d], strict=True)
            else:
                yield from ((line, None) for line in old[a:b])
                yield from ((None, line) for line in new[c:d])


def _head(line: str) -> str:
    """Return what a line binds: a function's name, or a variable."""
    return re.split(r"[(:=]", line, maxsplit=1)[0]


def changes_html(found: Sequence[PassChanges]) -> Html:
    """Return all passes in order, those that changed something as elements that open."""
    budget = MAX_UNCHANGED
    most = max((p.record.seconds for p in found), default=0.0) or 1.0
    shown = []
    for one in found:
        name = one.record.name
        width = f"width:{max(6 * one.record.seconds / most, 0.02):.2f}em"
        line = (
            tag("span", name, class_="pass"),
            tag("span", one.summary(), class_="count"),
            tag("span", time_text(one.record.seconds), class_="time"),
            tag("span", tag("span", style=width), class_="bar"),
            tag("span", _purpose(name), class_="about"),
        )
        if one.added or one.removed or one.rewritten:
            body, budget = _body(one.steps, budget)
            shown.append(details(join(line), tag("div", body, class_="meta-ir diff")))
        else:
            shown.append(tag("div", *line, class_="idle"))
    return tag("div", *shown, class_="passes")


def _purpose(name: str) -> str:
    """Return the first sentence of what the documentation says of a pass."""
    text = getattr(getattr(passes, name, None), "__doc__", None) or ""
    return " ".join(text.replace("`", "").split()).partition(". ")[0].rstrip(".")


def _body(steps: Sequence[tuple[str | None, str | None]], budget: int) -> tuple[Html, int]:
    """Return the lines of a pass, long unchanged parts folded, and what is left of the budget."""
    near: set[int] = set()
    for number, (old, new) in enumerate(steps):
        if old != new:
            near.update(range(number - CONTEXT, number + CONTEXT + 1))
    parts: list[Html] = []
    folded: list[str] = []
    changed = 0

    def fold() -> None:
        nonlocal budget
        if not folded:
            return
        what = f"{len(folded)} unchanged line{'s' * (len(folded) > 1)}"
        if len(folded) > budget:
            parts.append(tag("div", f"⋯ {what}", class_="far"))
        else:
            budget -= len(folded)
            inner = tag("div", *(_plain(line) for line in folded))
            parts.append(details(f"⋯ {what}", inner))
        folded.clear()

    for number, (old, new) in enumerate(steps):
        if number not in near:
            assert new is not None
            folded.append(new)
            continue
        fold()
        if old == new:
            assert new is not None
            parts.append(_plain(new))
            continue
        changed += 1
        if changed > MAX_CHANGED:
            left = sum(a != b for a, b in steps[number:])
            parts.append(tag("div", f"⋯ and {left:,} more changed lines", class_="far"))
            return join(parts), budget
        parts += _changed(old, new)
    fold()
    return join(parts), budget


def _plain(line: str) -> Html:
    return tag("div", line_html(_cut(line, _LONGEST)))


def _changed(old: str | None, new: str | None) -> list[Html]:
    if old is not None and new is not None:
        marked = _marked(old, new)
        if marked is not None:
            return [tag("div", marked, class_="edit")]
    found = []
    for line, kind in ((old, "old"), (new, "new")):
        if line is not None:
            found.append(tag("div", line_html(_cut(line, 2 * _LONGEST)), class_=kind))
    return found


def _marked(old: str, new: str) -> Html | None:
    """Return a line with what was taken out and put in; None if little of it stayed."""
    a, b = _TOKEN.findall(old), _TOKEN.findall(new)
    matcher = SequenceMatcher(None, a, b, False)
    if matcher.ratio() < 0.5:
        return None
    parts: list[Html] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal":
            parts.append(line_html(_cut("".join(a[i:j]), _LONGEST)))
            continue
        for name, tokens in (("del", a[i:j]), ("ins", b[k:m])):
            if tokens:
                parts.append(tag(name, line_html(_cut("".join(tokens), _LONGEST))))
    return join(parts)


def _cut(text: str, most: int) -> str:
    """Cut a long text in its middle."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"
