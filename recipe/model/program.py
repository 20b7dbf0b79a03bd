"""What the steps on the model's files share: free space, progress, and a program that runs to its end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from recipe.errors import BadInputError
from recipe.process import ProcessGroup
from recipe.run.folder import existing_part
from recipe.run.interrupts import Interrupts

SECONDS = 7 * 86400.0  # 550 GB at 1 MB/s
GRACE = 60.0  # torchrun gives its workers, which are not of its group, 30 s


def require_space(needed: Mapping[Path, int]) -> None:
    """Raises BadInputError when a disk has less free than the bytes `needed` in the folders on it."""
    disks: dict[int, tuple[Path, int]] = {}
    for folder, size in needed.items():
        there = existing_part(folder)
        path, before = disks.get(there.stat().st_dev, (there, 0))
        disks[there.stat().st_dev] = path, before + size
    for path, size in disks.values():
        if (free := shutil.disk_usage(path).free) < size:
            raise BadInputError(
                "the disk has too little space",
                expected=f"{size:,} bytes free",
                found=f"{free:,} bytes free",
                where=path,
            )


@contextmanager
def bytes_bar(console: Console, name: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Shows bytes, speed and time left; what is yielded takes the number of further bytes."""
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn(name), BarColumn(), *columns, console=console) as progress:
        task = progress.add_task(name, total=total, completed=done)
        yield lambda count: progress.advance(task, count)


def run_program(
    name: str,
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    interrupts: Interrupts,
    watch: Callable[[], None],
) -> None:
    """Runs `argv` to its end, `watch` called meanwhile; an interruption ends it, SIGKILL after GRACE seconds.

    Raises RecipeError with the end of its log when it fails or takes longer than SECONDS.
    """
    with ExitStack() as stack:
        with interrupts.held():
            group = ProcessGroup.start(name, argv, log=log, env=env)
            stack.callback(group.stop, grace=GRACE)

        def both() -> None:
            interrupts.check()
            watch()

        if group.wait_end(seconds=SECONDS, watch=both):
            raise group.ended_early()
        watch()
