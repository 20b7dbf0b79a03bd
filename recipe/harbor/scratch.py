"""A sandbox's folder on the host: made, held by a lock for as long as its owner lives, removed, swept.

    SCRATCH_ROOT/<sandbox>/          locked (flock) by the process that runs the sandbox
        session                      number of its processes' session
        disk/                        where the sandbox's own file system is, for its processes alone

The kernel drops a lock with its process, however that ends: an unlocked folder is a dead run's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recipe.errors import BadInputError, RecipeError
from recipe.harbor import cgroups, session

log = logging.getLogger(__name__)
OF_SANDBOX = re.compile(r"[0-9]+-\w+")  # its owner's pid, and what mkdtemp adds


def default_root() -> Path:
    """Below the system's temporary folder, which every user can traverse (a home folder often can't be)."""
    return Path(tempfile.gettempdir()) / f"inkling-grpo-{os.getuid()}"


@dataclass
class Scratch:
    """One sandbox's folder, locked by this process."""

    path: Path
    lock: int
    cgroups: list[Path]

    @property
    def disk(self) -> Path:
        return self.path / "disk"

    @classmethod
    def create(cls, root: Path, owner: int | None) -> Scratch:
        """`owner`: uid of the sandbox's processes, that must be able to traverse `root`; None: ours.

        Raises BadInputError where `root` will not do.
        """
        _prepare(root, owner)
        with _locked(root, fcntl.LOCK_SH):
            path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
            scratch = cls(path, _lock(path), cgroups.planned(path.name))
        try:
            scratch._fill(owner)
        except BaseException:  # a full disk
            scratch.remove()
            raise
        return scratch

    def _fill(self, owner: int | None) -> None:
        self.path.chmod(0o711)
        self.disk.mkdir()
        if owner is not None:
            _give(self.disk, owner)

    def remove(self) -> None:
        """Removes the groups and the folder. Raises OSError when something stays."""
        try:
            cgroups.remove(self.cgroups)
            shutil.rmtree(self.path)
        finally:
            os.close(self.lock)


def sweep(root: Path) -> int:
    """Ends and removes what dead owners left below `root`: processes, cgroups and folders of sandboxes.

    Returns how many sandboxes' it was; what can't be removed is logged and stays. Raises BadInputError for a root
    that is not safely ours.
    """
    return sum(not why for why in remove_left(root).values())


def left(root: Path) -> list[str]:
    """The folders below `root` whose owners are dead. Raises BadInputError for a root that is not safely ours."""
    claimed = _claim(root)
    for lock in claimed.values():
        os.close(lock)
    return [path.name for path in claimed]


def remove_left(root: Path, only: str = "") -> dict[str, str]:
    """As `sweep`, or one folder alone: by its name why it is still there, or nothing."""
    reasons = {}
    for path, lock in _claim(root, only).items():
        try:
            session.end_recorded(path)
            cgroups.remove(cgroups.planned(path.name))
            shutil.rmtree(path)
            reasons[path.name] = ""
        except (OSError, RecipeError) as error:
            log.warning("what a dead run left stays: %s: %s", path, error)
            reasons[path.name] = f"{error}".replace("\n", " ")
        finally:
            os.close(lock)
    return reasons


def _claim(root: Path, only: str = "") -> dict[Path, int]:
    """The folders that `create` made and nobody holds, and their locks, which are ours from here on."""
    claimed: dict[Path, int] = {}
    try:
        _require_ours(root)
    except FileNotFoundError:
        return claimed
    with _locked(root, fcntl.LOCK_EX):  # nobody is between making a folder and locking it
        for path in root.iterdir():
            if OF_SANDBOX.fullmatch(path.name) and only in ("", path.name):
                with contextlib.suppress(OSError):  # it goes, it is a file or a link, or its owner lives
                    if path.lstat().st_uid == os.geteuid():
                        claimed[path] = _lock(path)
    return claimed


def _require_ours(root: Path) -> None:
    """Else somebody else could say what is removed: by a link, or by what lies in the folder."""
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise BadInputError(
            "the scratch folder is not safely ours",
            expected=f"a folder that only uid {os.geteuid()} can write to",
            found=f"uid {found.st_uid}, mode {stat.filemode(found.st_mode)}",
            where=root,
            run=f"rm -r {shlex.quote(str(root))}, or set TMPDIR to another folder",
        )


def _prepare(root: Path, owner: int | None) -> None:
    with contextlib.suppress(FileExistsError):
        root.mkdir(parents=True)
        root.chmod(0o711)
    _require_ours(root)
    closed = [folder for folder in (root, *root.resolve().parents) if not folder.stat().st_mode & 0o001]
    if owner is not None and closed:
        raise BadInputError(
            f"the sandboxes' user (uid {owner}) can't reach the scratch folder",
            expected="folders that everybody may traverse (mode o+x)",
            found=", ".join(map(str, closed)),
            where=root,
            run="set TMPDIR to a folder like /var/tmp",
        )


def _give(folder: Path, owner: int) -> None:
    try:
        os.chown(folder, owner, owner)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM):
            raise
        raise BadInputError(
            "this root user can't give its sandboxes' folders away",
            expected=f"a user namespace that also maps uid and gid {owner}, with CAP_CHOWN, or an ordinary user",
            found=error,
            where="/proc/self/uid_map",
            run="run as an ordinary user, or map more users (unshare --map-auto, subuids for the container)",
        ) from error


@contextlib.contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int:
    """A descriptor that holds the folder's lock. Raises OSError when someone else holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
