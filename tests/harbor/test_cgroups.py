"""Limits by cgroup: the real ones of this machine, and version 2 in a folder that behaves as the kernel's does."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from proofs import as_root

from recipe.harbor import cgroups

FILES = {"memory": ("memory.max", "memory.swap.max"), "pids": ("pids.max",), "cpu": ("cpu.max",)}
ASKED = {"memory_mb": 100, "cpus": 0.5, "processes": 7}


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder has the files of the controllers that its parent hands on; one with processes can't be removed."""
    mkdir, rmdir, write_text = Path.mkdir, Path.rmdir, Path.write_text

    def make(self: Path, *arguments: object, **options: object) -> None:
        mkdir(self, *arguments, **options)  # type: ignore[arg-type]
        handed_on = (self.parent / "cgroup.subtree_control").read_text().split()
        files = [file for name in handed_on for file in FILES[name.removeprefix("+")]]
        for name in ("cgroup.procs", "cgroup.subtree_control", *files):
            if not (self / name).exists():
                write_text(self / name, "")

    def remove(self: Path) -> None:
        if (self / "cgroup.procs").read_text():
            raise OSError(errno.EBUSY, "Device or resource busy")
        shutil.rmtree(self) if self != tmp_path else rmdir(self)

    def write(self: Path, text: str) -> int:
        switch = self.name == "cgroup.subtree_control"
        return write_text(self, f"{self.read_text()} {text}" if switch else text)

    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("")
    for name, replaced in (("mkdir", make), ("rmdir", remove), ("write_text", write)):
        monkeypatch.setattr(Path, name, replaced)
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def test_version_2_hands_its_controllers_down_and_sets_every_limit(version_2: Path) -> None:
    planned = cgroups.planned("box")
    assert planned == [version_2 / cgroups.PARENT / "box"]
    (group,) = cgroups.create(planned, **ASKED)  # type: ignore[arg-type]
    limits = {path.name: path.read_text() for path in group.glob("*.*max")}
    bytes_ = str(100 << 20)
    assert limits == {
        "memory.max": bytes_,
        "memory.swap.max": "0",
        "pids.max": "7",
        "cpu.max": "50000 100000",
    }


def test_version_2_takes_a_process_in_and_ends_what_is_left_at_the_removal(version_2: Path) -> None:
    groups = cgroups.create(cgroups.planned("box"), **ASKED)  # type: ignore[arg-type]
    process = subprocess.Popen(["sleep", "1000"])
    cgroups.enter(groups, process.pid)
    assert (groups[0] / "cgroup.procs").read_text() == str(process.pid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cgroups, "REMOVE_SECONDS", 0.05)
        with pytest.raises(OSError, match="busy"):  # this kernel never notices that it is gone
            cgroups.remove(groups)
    assert process.wait(10) == -9
    (groups[0] / "cgroup.procs").write_text("")
    cgroups.remove(groups)
    assert not groups[0].exists()


def test_where_no_group_can_be_made_there_are_none_and_nothing_fails(version_2: Path) -> None:
    (version_2 / cgroups.PARENT).symlink_to("/proc/none")
    assert cgroups.create(cgroups.planned("box"), **ASKED) == []  # type: ignore[arg-type]


@as_root
def test_the_limits_of_this_machine_are_set_and_the_groups_removed() -> None:
    groups = cgroups.create(cgroups.planned(f"test-{os.getpid()}"), **ASKED)  # type: ignore[arg-type]
    if not groups:
        pytest.skip("no cgroup can be made here")
    try:
        said = {
            path.name: path.read_text().strip()
            for group in groups
            for path in group.iterdir()
            if path.is_file()
            and path.name
            in {"pids.max", "cpu.cfs_quota_us", "cpu.max", "memory.limit_in_bytes", "memory.max"}
        }
        assert {"7"} < set(said.values())
        assert {str(100 << 20), "50000", "50000 100000"} & set(said.values())
    finally:
        cgroups.remove(groups)
    assert not [group for group in groups if group.exists()]
