"""`require_consistent`: all ranks have the same text, or an error on all of them shows where it
differs.

What is exchanged is a hash; texts are exchanged only where hashes differ. It goes through the host
(`Group.gather`), so that a broken collective of a device is not needed for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from itertools import zip_longest

from meta.base.errors import DistributedError
from meta.base.source import Span
from meta.runtime.mesh import RankMesh

MAX_LINE = 200
"""Characters of a line that are shown."""
_NOTHING = "(nothing more)"


def digest(text: str) -> bytes:
    """Return the hash of a text that ranks compare: 16 bytes."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def require_consistent(
    mesh: RankMesh,
    what: str,
    own: bytes,
    text: Callable[[], str],
    over: Collection[str] | None = None,
    *,
    hint: str | None = None,
    span: Span | None = None,
) -> None:
    """Check that all ranks along some axes have the same; all of them call it.

    what: what they are to agree on, as "the program". own: its hash. text: the lines behind the
    hash, for the message. over: None for all axes. Raises DistributedError on all of these ranks.
    """
    if len(set(mesh.gather(own, what, over).values())) == 1:
        return
    # By the numbers of ranks in the order of the axes, as messages elsewhere.
    given = mesh.gather(f"{mesh.rank}\n{text()}".encode(), what, over)
    texts: dict[int, str] = {}
    for one in given.values():
        number, _, its = one.decode().partition("\n")
        texts[int(number)] = its
    raise DistributedError(
        f"the ranks do not agree on {what}",
        expected="the same on all of them",
        found=first_difference(texts),
        hint=hint,
        span=span,
    )


def first_difference(texts: dict[int, str]) -> str:
    """Return the first line in which texts differ, with the ranks that have which."""
    lines = {rank: its.splitlines() for rank, its in texts.items()}
    for number, row in enumerate(zip_longest(*lines.values(), fillvalue=_NOTHING), 1):
        kinds: dict[str, list[int]] = {}
        for rank, line in zip(lines, row, strict=True):
            kinds.setdefault(line, []).append(rank)
        if len(kinds) > 1:
            shown = (f"{ranks_text(r)}: {line.strip()[:MAX_LINE]}" for line, r in kinds.items())
            return f"line {number}" + "".join(f"\n    {one}" for one in shown)
    return "different hashes of equal lines"


def ranks_text(ranks: Collection[int]) -> str:
    """Return ranks for a message: "rank 3", "ranks 0, 2-5"."""
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    found = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(found)}"
