"""A run's folder on a disk that gets full: nothing half-made stays, and the message names the disk."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from recipe.errors import BadInputError, RecipeError
from recipe.files import kind_of, require_folder, write_whole
from recipe.run import launch
from recipe.run.folder import RunFolder, full_disk_named


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_could_not_be_written_leaves_no_part_of_it(tmp_path, monkeypatch):
    write_whole(tmp_path / "file", "before")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "file", "after")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


def test_a_folder_that_can_be_made_only_in_part_is_not_made(tmp_path, monkeypatch):
    mkdir = Path.mkdir
    monkeypatch.setattr(
        Path, "mkdir", lambda path, **how: full() if path.name == "dump_details" else mkdir(path, **how)
    )
    with pytest.raises(BadInputError, match="can't be made"):
        RunFolder.create(tmp_path / "runs" / "run")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_full_disk_is_told_with_its_place_and_what_is_free(tmp_path):
    with pytest.raises(RecipeError) as told, full_disk_named(tmp_path / "runs"):
        full()
    assert f"RUNS_ROOT {tmp_path}/runs" in str(told.value)
    assert "bytes free" in str(told.value)
    with pytest.raises(PermissionError), full_disk_named(tmp_path):
        raise PermissionError


def test_a_manifest_that_cannot_be_finished_does_not_hide_why_the_run_failed():
    class Manifest:
        finish = full

    out = io.StringIO()
    folder, own = RunFolder(Path("/run")), RecipeError("the run's own error")
    assert launch.finished(Manifest(), own, folder, Console(file=out, width=200)) is own
    assert "run_manifest.json lacks the end of the run" in out.getvalue()
    assert "No space" in out.getvalue()


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "link").symlink_to("target")
    for text in ("new", "again"):
        write_whole(tmp_path / "link", text)
        assert (tmp_path / "target").read_text() == text
    assert (tmp_path / "link").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_no_file_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "to the pipe").symlink_to("pipe")
    before = {path: path.lstat().st_ino for path in tmp_path.iterdir()}
    for path in before:
        with pytest.raises(BadInputError, match="could not be written"):
            write_whole(path, "text")
    assert {path: path.lstat().st_ino for path in tmp_path.iterdir()} == before


def test_only_a_place_where_a_folder_can_be_is_taken(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("gone")
    require_folder(tmp_path, "OUT")
    require_folder(tmp_path / "new" / "folder", "OUT")
    for place in ("file", "file/x", "loop", "loop/x", "nowhere", "nowhere/x"):
        with pytest.raises(BadInputError, match="OUT can't be written"):
            require_folder(tmp_path / place, "OUT")
    monkeypatch.setattr(os, "access", lambda path, mode, **_: path != tmp_path or not mode & os.W_OK)
    with pytest.raises(BadInputError, match="OUT can't be written") as refused:
        require_folder(tmp_path / "new", "OUT")
    assert str(tmp_path) in refused.value.facts["found"]


def test_a_full_disk_is_a_failure_and_a_wrong_place_is_bad_input():
    assert kind_of(OSError(errno.ENOSPC, "")) is RecipeError
    assert kind_of(OSError(errno.EROFS, "")) is BadInputError
