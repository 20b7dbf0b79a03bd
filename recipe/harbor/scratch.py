"""A sandbox's folder on the host: made, held by a lock for as long as its owner lives, removed, swept.

    SCRATCH_ROOT/<sandbox>/          locked (flock) by the process that runs the sandbox
        cgroups                      the groups made for it, one a line
        session                      number of its processes' session
        disk/                        where the sandbox's own file system is, for its processes alone

The kernel drops a lock with its process, however that ends: an unlocked folder is a dead run's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recipe.errors import BadInputError
from recipe.harbor import cgroups, session


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
        (self.path / "cgroups").write_text("".join(f"{group}\n" for group in self.cgroups))
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

    Returns how many sandboxes' it was.
    """
    if not root.is_dir():
        return 0
    dead = []
    with _locked(root, fcntl.LOCK_EX):  # nobody is between making a folder and locking it
        for path in root.iterdir():
            with contextlib.suppress(OSError):
                dead.append((path, _lock(path)))
    for path, lock in dead:
        session.end_recorded(path)
        with contextlib.suppress(FileNotFoundError):
            cgroups.remove(map(Path, (path / "cgroups").read_text().splitlines()))
        shutil.rmtree(path)
        os.close(lock)
    return len(dead)


def _prepare(root: Path, owner: int | None) -> None:
    with contextlib.suppress(FileExistsError):
        root.mkdir(parents=True)
        root.chmod(0o711)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise BadInputError(
            "the scratch folder is not safely ours",
            expected=f"a folder that only uid {os.geteuid()} can write to",
            found=f"uid {found.st_uid}, mode {stat.filemode(found.st_mode)}",
            where=root,
            run=f"rm -r {root}, or set TMPDIR to another folder",
        )
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
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
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
