"""Scratch folders of dead owners are swept, of live ones never; unsafe roots are refused."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from proofs import as_root, cgroups_of, exists, kill_once_it_has_forked, left_in, processes_naming, wait_until

from recipe.errors import BadInputError, RecipeError
from recipe.harbor import session
from recipe.harbor.bwrap import find_bwrap
from recipe.harbor.sandbox import Sandbox
from recipe.harbor.scratch import Scratch, left, sweep

OWNER = """
import asyncio, sys
from pathlib import Path
from recipe.harbor.sandbox import Sandbox
async def main():
    box = Sandbox(root=Path(sys.argv[1]))
    await box.start()
    task = asyncio.create_task(box.run(["/bin/sleep", "1000"]))
    await box.run(["/bin/true"])
    print(box.pid, box.scratch.path.name, flush=True)
    await task
asyncio.run(main())
"""


@pytest.fixture
def owner(scratch_root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", OWNER, scratch_root], stdout=subprocess.PIPE, text=True)


def test_a_killed_owner_leaves_no_process_and_its_folder_is_swept(
    owner: subprocess.Popen[str], scratch_root: Path
) -> None:
    pid, name = owner.stdout.readline().split()  # type: ignore[union-attr]
    assert sweep(scratch_root) == 0  # it lives
    assert exists(int(pid))
    assert (scratch_root / name).is_dir()

    groups = cgroups_of(name)
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    wait_until(lambda: not exists(int(pid)))
    assert (scratch_root / name).is_dir()
    assert [path.is_dir() for path in groups] == [True] * len(groups)
    assert sweep(scratch_root) == 1
    assert not (scratch_root / name).exists()
    assert not cgroups_of(name)


def test_what_an_owner_leaves_that_is_killed_during_a_start_is_swept(scratch_root: Path) -> None:
    find_bwrap()
    for _ in range(10):
        owner = os.fork()
        if owner == 0:
            try:
                asyncio.run(Sandbox(root=scratch_root).start())
            finally:
                os._exit(0)
        deadline = time.monotonic() + 30
        while not (leader := _leader(scratch_root)):
            assert time.monotonic() < deadline
        os.kill(owner, signal.SIGSTOP)  # it must not clean up
        kill_once_it_has_forked(leader)  # as the kernel does at its owner's death, in the worst moment
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        assert sweep(scratch_root) == 1
        wait_until(lambda: not processes_naming(scratch_root))


def _leader(scratch_root: Path) -> int:
    return next((int(path.read_text() or 0) for path in scratch_root.glob("*/session")), 0)


def test_a_sweep_spares_a_session_that_has_only_the_number_of_a_dead_one(scratch_root: Path) -> None:
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        dead = Scratch.create(scratch_root, None)
        (dead.path / "session").write_text(str(stranger.pid))
        os.close(dead.lock)
        assert sweep(scratch_root) == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_root_user_that_has_no_other_users_is_refused(scratch_root: Path) -> None:
    create = "import sys; from pathlib import Path; from recipe.harbor.scratch import Scratch\n"
    create += "try: Scratch.create(Path(sys.argv[1]), 65534)\n"
    create += "except Exception as error: print(type(error).__name__, error)"
    command = ["unshare", "-U", "-r", sys.executable, "-c", create, scratch_root]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.startswith("BadInputError this root user can't give")
    assert "run as an ordinary user" in said


def test_only_the_dead_are_swept_among_many(scratch_root: Path) -> None:
    live = [Scratch.create(scratch_root, None) for _ in range(3)]
    dead = [Scratch.create(scratch_root, None) for _ in range(3)]
    for scratch in dead:
        os.close(scratch.lock)  # as the kernel does when the owner dies
    (scratch_root / "stray-file").write_text("")
    assert sweep(scratch_root) == 3
    assert {path.name for path in scratch_root.iterdir()} == {
        *(scratch.path.name for scratch in live),
        "stray-file",
    }
    (scratch_root / "stray-file").unlink()
    for scratch in live:
        scratch.remove()


def test_a_creation_that_fails_leaves_nothing(scratch_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "chown", full)
    with pytest.raises(OSError, match="No space left"):
        Scratch.create(scratch_root, os.getuid())
    assert not left_in(scratch_root)


def test_a_missing_root_is_nothing_to_sweep(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none") == 0


def test_a_root_that_others_can_write_to_is_refused(scratch_root: Path) -> None:
    scratch_root.mkdir()
    scratch_root.chmod(0o777)
    with pytest.raises(BadInputError, match="not safely ours"):
        Scratch.create(scratch_root, None)


def test_a_root_that_is_a_link_is_refused(scratch_root: Path, tmp_path: Path) -> None:
    scratch_root.symlink_to(tmp_path)
    with pytest.raises(BadInputError, match="not safely ours"):
        Scratch.create(scratch_root, None)
    scratch_root.unlink()


@as_root
def test_a_root_that_the_sandboxes_user_cannot_reach_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(BadInputError, match="can't reach") as refused:
        Scratch.create(tmp_path / "scratch", 65534)
    assert str(tmp_path) in refused.value.facts["found"]


@pytest.mark.parametrize("act", [sweep, left])
def test_a_link_or_a_folder_that_others_write_to_is_never_swept(
    scratch_root: Path, tmp_path: Path, act: Callable[[Path], object]
) -> None:
    precious = tmp_path / "precious"
    (precious / "1-work").mkdir(parents=True)
    scratch_root.symlink_to(precious)
    with pytest.raises(BadInputError, match="not safely ours"):
        act(scratch_root)
    scratch_root.unlink()
    scratch_root.symlink_to(tmp_path / "nothing")
    with pytest.raises(BadInputError, match="not safely ours"):
        act(scratch_root)
    scratch_root.unlink()
    (scratch_root / "1-work").mkdir(parents=True)
    scratch_root.chmod(0o777)
    with pytest.raises(BadInputError, match="not safely ours"):
        act(scratch_root)
    assert (precious / "1-work").is_dir()
    assert (scratch_root / "1-work").is_dir()
    shutil.rmtree(scratch_root)


def test_what_no_sandbox_has_made_is_not_swept(scratch_root: Path, tmp_path: Path) -> None:
    strange = scratch_root / "precious"
    strange.mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (scratch_root / "1-link").symlink_to(tmp_path / "other")
    assert sweep(scratch_root) == 0
    assert strange.is_dir()
    assert (tmp_path / "other").is_dir()
    shutil.rmtree(scratch_root)


@as_root
def test_a_folder_of_another_user_is_not_swept(scratch_root: Path) -> None:
    theirs = scratch_root / "1-theirs"
    theirs.mkdir(parents=True)
    os.chown(theirs, 65534, 65534)
    assert sweep(scratch_root) == 0
    assert theirs.is_dir()
    shutil.rmtree(scratch_root)


def test_a_planted_list_of_groups_ends_no_process(scratch_root: Path, tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        dead = Scratch.create(scratch_root, None)
        group = tmp_path / "group"
        group.mkdir()
        (group / "cgroup.procs").write_text(f"{stranger.pid}\n")
        (dead.path / "cgroups").write_text(f"{group}\n")
        os.close(dead.lock)
        assert sweep(scratch_root) == 1
        assert stranger.poll() is None
        assert group.is_dir()
    finally:
        stranger.kill()
        stranger.wait()


def test_what_can_not_be_removed_keeps_nothing_else_from_it(
    scratch_root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dead = [Scratch.create(scratch_root, None) for _ in range(3)]
    for scratch in dead:
        os.close(scratch.lock)
    end = session.end_recorded

    def stuck(path: Path) -> None:
        if path == dead[0].path:
            raise RecipeError("a dead run's sandbox does not end")
        end(path)

    monkeypatch.setattr(session, "end_recorded", stuck)
    assert sweep(scratch_root) == 2
    assert left(scratch_root) == [dead[0].path.name]
    assert "does not end" in caplog.text
    monkeypatch.undo()
    assert sweep(scratch_root) == 1
