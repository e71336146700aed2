"""Lists of what is not as in PyTorch, entry by entry, and why; the lists are tested as well.

A list is written by reasons, as regular expressions that the messages match, with the names of the
entries of torch's database behind each, apart by spaces.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping


def by_entry(*lists: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the reasons of each entry; a reason may be in several lists."""
    found: dict[str, list[str]] = {}
    for reason, entries in ((r, e) for groups in lists for r, e in groups.items()):
        for name in entries.split():
            reasons = found.setdefault(name, [])
            assert reason not in reasons, f"{name} occurs twice behind {reason!r}"
            reasons.append(reason)
    return found


def check_listed(key: str, messages: Collection[str], listed: Mapping[str, list[str]]) -> None:
    """Raise AssertionError unless each message about an entry has a reason in a list, and each
    reason of the entry a message: what is listed and is as in PyTorch is to leave the list.
    """
    reasons = listed.get(key, [])
    unlisted = [m for m in messages if not any(re.search(r, m) for r in reasons)]
    assert not unlisted, f"{key} is not in the list with\n" + "\n".join(sorted(set(unlisted)))
    idle = [r for r in reasons if not any(re.search(r, m) for m in messages)]
    assert not idle, f"{key} is listed for what it no longer has: {', '.join(idle)}"


def check_names(listed: Mapping[str, list[str]], known: Collection[str]) -> None:
    """Raise AssertionError for a list with names of no entries."""
    unknown = sorted(listed.keys() - set(known))
    assert not unknown, f"no entries: {', '.join(unknown)}"
