"""Task directories: everything that keeps one from use is told, with its name, and nothing is passed over."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from recipe.errors import BadInputError
from recipe.tasks.folders import BACKENDS, content_hash, require_usable, stats, task_names, task_settings

SMOKE = Path(__file__).parents[2] / "recipe" / "tasks" / "smoke"
OFFLINE = '[environment]\nnetwork_mode = "no-network"\n'


def make(tasks: Path, name: str, settings: str = OFFLINE, instruction: bytes = b"Do it.\n") -> Path:
    task = tasks / name
    (task / "tests").mkdir(parents=True)
    (task / "environment").mkdir()
    (task / "task.toml").write_text(settings)
    (task / "instruction.md").write_bytes(instruction)
    return task


def problems(tasks: Path, backend: str | None = None) -> list[str]:
    try:
        require_usable(tasks, task_names(tasks), backend)
    except BadInputError as error:
        return error.facts["found"].split("\n")
    return []


def test_the_smoke_tasks_can_be_used_everywhere() -> None:
    assert [problems(SMOKE, backend) for backend in (None, *BACKENDS)] == [[]] * 6


def test_every_offender_is_listed(tmp_path: Path) -> None:
    make(tmp_path, "fine")
    make(tmp_path, "a b")
    make(tmp_path, "a..b")
    make(tmp_path, "latin", instruction=b"caf\xe9")
    make(tmp_path, "blank", instruction=b" \r\n")
    make(tmp_path, "no-tests").joinpath("tests").rmdir()
    make(tmp_path, "broken", settings="[agent")
    make(tmp_path, "wrong", settings="[agent]\ntimeout_sec = 'soon'\n")
    pipe = make(tmp_path, "pipe") / "instruction.md"
    pipe.unlink()
    os.mkfifo(pipe)
    (tmp_path / "empty").mkdir()
    (tmp_path / "README.md").touch()
    (tmp_path / ".git").mkdir()
    found = problems(tmp_path)
    assert {line.partition(":")[0] for line in found} == {path.name for path in tmp_path.iterdir()} - {
        "fine",
        "README.md",
        ".git",
    }
    assert len([line for line in found if line.startswith("empty:")]) == 3
    assert any("timeout_sec" in line for line in found if line.startswith("wrong:"))
    assert any("no UTF-8" in line or "decode" in line for line in found if line.startswith("latin:"))


def test_a_byte_order_mark_is_named_and_is_no_instruction(tmp_path: Path) -> None:
    make(tmp_path, "settings", settings="\ufeff[agent]\n")
    make(tmp_path, "text", instruction=b"\xef\xbb\xbf \n")
    first, second = problems(tmp_path)
    assert "(BOM)" in first
    assert second == "text: instruction.md is empty"


def test_one_task_is_one_task(tmp_path: Path) -> None:
    make(tmp_path, "a..b")
    with pytest.raises(BadInputError, match=r"^1 task can't be used"):
        require_usable(tmp_path, ["a..b"])


def test_a_task_of_another_user_is_named(tmp_path: Path) -> None:
    for name in ("closed", "fine", "half"):
        make(tmp_path, name)
    # Modes don't stop root, as which tests may run.
    code = (
        "import os, sys; from pathlib import Path; from recipe.tasks import folders; "
        "os.geteuid() or os.seteuid(65534); root = Path(sys.argv[1]); "
        "folders.require_usable(root, folders.task_names(root))"
    )
    for path, mode in (("closed", 0), ("half/environment", 0), (".", 0o755)):
        (tmp_path / path).chmod(mode)
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        tasks = tmp_path.rename(Path(place) / "tasks")
        found = subprocess.run(
            [sys.executable, "-c", code, str(tasks)], capture_output=True, text=True, check=False
        )
        tasks.rename(tmp_path)
    assert "recipe.errors.BadInputError: 2 tasks can't be used" in found.stderr
    for line in ("closed: it could not be read", "half: it could not be read"):
        assert line in found.stderr


def test_a_link_must_stay_inside(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    inner = make(tasks, "inner")
    outer = make(tmp_path / "elsewhere", "outer")
    (tasks / "alias").symlink_to("inner")
    (inner / "tests" / "again.md").symlink_to("../instruction.md")
    assert problems(tasks) == []
    (tmp_path / "linked").symlink_to(tasks)
    assert problems(tmp_path / "linked") == []
    (tasks / "outside").symlink_to(outer)
    (tasks / "whole").symlink_to(tasks)
    (tasks / "nowhere").symlink_to("gone")
    (tasks / "loop").symlink_to("loop")
    make(tasks, "leaking").joinpath("environment", "passwd").symlink_to("/etc/passwd")
    make(tasks, "folder").joinpath("solution").symlink_to(outer)
    make(tasks, "sibling").joinpath("solution").symlink_to("../inner")
    (make(tasks, "text") / "instruction.md").unlink()
    (tasks / "text" / "instruction.md").symlink_to(outer / "instruction.md")
    names = {line.partition(":")[0] for line in problems(tasks)}
    assert names == {"outside", "whole", "nowhere", "loop", "leaking", "folder", "sibling", "text"}


@pytest.mark.parametrize(
    ("settings", "files", "able"),
    [
        (OFFLINE, [], {"local", "docker", "daytona", "modal", "gke"}),
        ("", [], {"docker", "daytona", "modal", "gke"}),
        ("[environment]\nallow_internet = false\n", [], {"local", "docker", "daytona", "modal", "gke"}),
        (OFFLINE + "gpus = 1\n", [], {"daytona", "modal"}),
        (OFFLINE + "gpus = 0\n", [], {"local", "docker", "daytona", "modal", "gke"}),
        (OFFLINE, ["docker-compose.yaml"], {"docker", "daytona", "modal", "gke"}),
        (OFFLINE + "docker_image = 'x'\n", [], {"docker", "daytona", "modal", "gke"}),
        (OFFLINE + "docker_image = 'x'\n", ["Dockerfile"], set(BACKENDS)),
        ("[environment]\nnetwork_mode = 'allowlist'\n", [], {"docker", "daytona", "modal"}),
    ],
)
def test_a_task_is_refused_where_the_backend_lacks_what_it_needs(
    tmp_path: Path, settings: str, files: list[str], able: set[str]
) -> None:
    task = make(tmp_path, "task", settings)
    for name in files:
        (task / "environment" / name).touch()
    assert problems(tmp_path) == []
    assert {backend for backend in BACKENDS if not problems(tmp_path, backend)} == able


def test_the_local_backend_s_abilities_are_what_its_environment_says() -> None:
    from recipe.harbor.local_env import LocalEnvironment

    declared = LocalEnvironment.capabilities.fget(None)  # type: ignore[attr-defined]
    assert (BACKENDS["local"].gpus, BACKENDS["local"].containers) == (declared.gpus, declared.docker_compose)
    assert declared.disable_internet
    assert not declared.network_allowlist


@pytest.mark.parametrize(
    "text", ["[" * 5000, "x = ", "agent = 3", "[environment]\nnetwork_mode = 'some'", "\xff"]
)
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "task.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInputError) as refused:
        task_settings(tmp_path)
    assert refused.value.facts["where"] == str(tmp_path / "task.toml")


@pytest.mark.parametrize("name", ["missing", "file", "empty"])
def test_a_folder_without_tasks_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError):
        task_names(tmp_path / name)


def test_the_content_hash_follows_names_bytes_and_execute_bits_only(tmp_path: Path) -> None:
    first, second = make(tmp_path, "a"), make(tmp_path, "b")
    before = content_hash(first)
    assert content_hash(second) == before
    os.utime(second / "task.toml", (0, 0))
    assert content_hash(second) == before
    (second / "task.toml").chmod(0o755)
    assert content_hash(second) != before
    (first / "instruction.md").rename(first / "instruction.txt")
    assert content_hash(first) != before


def test_stats_tell_spreads_and_counts(tmp_path: Path) -> None:
    make(tmp_path, "a", "[agent]\ntimeout_sec = 60\n[environment]\nmemory_mb = 512\n", b"123")
    make(tmp_path, "b", "[agent]\ntimeout_sec = 90\n", "é23456789".encode())
    (make(tmp_path, "c") / "environment" / "docker-compose.yaml").touch()
    lines = {line[:24].strip(): line[24:] for line in stats(tmp_path)}
    assert lines["tasks"] == "3"
    assert lines["instruction, characters"] == "3 to 9, median 7, said by 3 tasks"
    assert lines["agent timeout, s"] == "60 to 90, median 75, said by 2 tasks"
    assert lines["memory, MiB"] == "512 to 512, median 512, said by 1 tasks"
    assert lines["GPUs"] == "said by 0 tasks"
    assert lines["Docker Compose tasks"] == "1"
    assert (lines["network public"], lines["network no-network"]) == ("2 tasks", "1 tasks")
