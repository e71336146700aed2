"""Where caches are on disk, and whether a folder can be trusted: what is in it may be run."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from meta.base import config


def caches_place() -> Path:
    """Return the folder that the folders of all caches of this user are in; it need not exist."""
    named = config.get("META_CACHE_DIR") or platformdirs.user_cache_dir("meta", appauthor=False)
    return Path(os.path.expanduser(named))  # "~nobody" stays as it is


def cache_folder(name: str) -> Path:
    """Return the folder of one cache of this user; it need not exist."""
    return caches_place() / name


def open_private(where: Path) -> str:
    """Create the folder if need be; return why it cannot be trusted or used, or nothing."""
    if where.parts[:1] and where.parts[0].startswith("~"):
        return f"there is no home folder {where.parts[0]}"
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        information = where.stat()
    except (OSError, ValueError) as error:  # ValueError: no name of a file
        return f"the folder cannot be made: {error}"
    return distrust(information)


def distrust(information: os.stat_result) -> str:
    """Return why a file or folder cannot be trusted, or nothing: others than this user and the
    administrator, who installs what is shared, may write to it.
    """
    if not hasattr(os, "geteuid"):
        return ""  # Windows: the user's folders are private by inheritance
    if information.st_uid not in (os.geteuid(), 0):
        return "it belongs to another user"
    if information.st_mode & 0o022:
        return "others may write to it"
    return ""
