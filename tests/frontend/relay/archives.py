"""`tar`: archives for the tests, by Python's own writer."""

from __future__ import annotations

import io
import tarfile


def tar(*members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT, **changes: object) -> bytes:
    """Return an archive; the changes are attributes of every member."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        folder = tarfile.TarInfo("./src")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5  # a time that needs an extended header
            for key, value in changes.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()
