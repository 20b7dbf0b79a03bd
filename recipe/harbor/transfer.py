"""Files between the host and a sandbox, as tar archives that only the sandbox's own tar packs and unpacks.

What comes out was written by a policy: of it we take regular files and folders, below the target, and no links.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import tarfile
from collections.abc import Mapping
from pathlib import Path

MEMBERS = 2000  # of one download: as many files as a trial may leave on our disk


def pack(members: Mapping[str, Path], mode: int | None = None) -> bytes:
    """An archive of `members` (name -> file or folder of the host), owned by the sandbox's root."""

    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode = member.mode if mode is None else mode
        return member

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, path in members.items():
            tar.add(path, arcname=name, filter=owned)
    return archive.getvalue()


def pack_content(folder: Path) -> bytes:
    """An archive of what is in `folder`."""
    return pack({path.name: path for path in folder.iterdir()})


def write(content: bytes, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def unpack(archive: bytes, target: Path) -> None:
    """Extracts what is safe and can be written, of the first MEMBERS; an archive that was cut, what came before."""
    target.mkdir(parents=True, exist_ok=True)
    # errorlevel 0: a member that is refused, or whose name is too long, is left out instead of raised.
    with (
        contextlib.suppress(tarfile.ReadError),
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:", errorlevel=0) as tar,
    ):
        first = itertools.islice(tar, MEMBERS)
        tar.extractall(target, first, filter=_plain)  # noqa: S202 (the filter is stricter than "data")


def _plain(member: tarfile.TarInfo, target: str) -> tarfile.TarInfo | None:
    return tarfile.data_filter(member, target) if member.isreg() or member.isdir() else None
