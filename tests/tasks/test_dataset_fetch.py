"""`recipe dataset fetch`: every byte of the commit or nothing, and what it was is written beside the tasks."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dataset_hub import REVISION, Hub, blob_id
from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError

from recipe.errors import BadInputError, RecipeError
from recipe.pins import PROJECT_ROOT
from recipe.tasks.fetch import fetch as fetch_here
from recipe.tasks.folders import fetched, require_usable, task_names

REPOSITORY = "someone/tasks"
COMMAND = """
import sys
from recipe.errors import RecipeError
from recipe.tasks.commands import app
try:
    app(sys.argv[1:])
except RecipeError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def task(path: str) -> dict[str, bytes]:
    name = path.rpartition("/")[2]
    return {
        f"{path}/task.toml": b'[environment]\nnetwork_mode = "no-network"\n',
        f"{path}/instruction.md": f"Do {name}.\r\n".encode(),
        f"{path}/tests/test.sh": b"exit 0\n",
        f"{path}/environment/Dockerfile": b"FROM x\n",
    }


@pytest.fixture
def hub():
    files = {"README.md": b"# Tasks\n", **task("synth/one"), **task("synth/two"), **task("evolved/one__b1")}
    files["synth/one/environment/big.bin"] = bytes(range(256)) * 40
    with Hub(REPOSITORY, files, large=("synth/one/environment/big.bin",)).running() as running:
        yield running


def started(hub: Hub, output: Path, revision: str = REVISION) -> subprocess.Popen[str]:
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(PROJECT_ROOT),
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(output.parent / "hf"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    options = ["--repository", REPOSITORY, "--revision", revision]
    command = [sys.executable, "-c", COMMAND, "fetch", str(output), *options]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def fetch(hub: Hub, output: Path, revision: str = REVISION) -> subprocess.CompletedProcess[str]:
    with started(hub, output, revision) as process:
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_tasks_of_all_folders_lie_side_by_side_and_their_source_beside_them(hub, tmp_path) -> None:
    tasks = tmp_path / "tasks"
    done = fetch(hub, tasks)
    assert done.returncode == 0, done.stderr
    assert task_names(tasks) == ["one", "one__b1", "two"]
    require_usable(tasks, task_names(tasks), "local")
    assert (tasks / "one" / "environment" / "big.bin").read_bytes() == bytes(range(256)) * 40
    assert (tasks / "two" / "instruction.md").read_bytes() == b"Do two.\r\n"
    listing = "".join(
        f"{path}\0{blob_id(content)}\n" for path, content in sorted(hub.files.items()) if "/" in path
    )
    digest = hashlib.sha256(listing.encode()).hexdigest()
    assert fetched(tasks) == {
        "repository": REPOSITORY,
        "revision": REVISION,
        "tasks": 3,
        "files": 13,
        "sha256": digest,
    }
    assert done.stdout == f"3 tasks, 13 files, sha256 {digest}, {tasks}\n"
    assert [path.name for path in tmp_path.iterdir() if path.name != "hf"] == ["tasks"]


def test_a_second_call_downloads_nothing_and_other_tasks_need_another_folder(hub, tmp_path) -> None:
    assert fetch(hub, tmp_path / "tasks").returncode == 0
    hub.served.clear()
    again = fetch(hub, tmp_path / "tasks")
    assert (again.returncode, hub.served) == (0, [])
    for name, path in (("tasks", tmp_path / "tasks"), ("other", tmp_path)):
        with pytest.raises(BadInputError, match="is there already"):
            fetch_here(f"someone/{name}", "f" * 40, path)
    assert task_names(tmp_path / "tasks") == ["one", "one__b1", "two"]


def test_a_download_that_was_killed_leaves_no_tasks_and_the_next_call_goes_on(hub, tmp_path) -> None:
    hub.stalls = "synth/one/environment/big.bin"
    there = tmp_path / f".tasks.{REVISION}.partial" / ".cache" / "huggingface" / "download"
    with started(hub, tmp_path / "tasks") as process:
        assert hub.half_sent.wait(60)
        for _ in range(600):
            if whole := list(there.rglob("*.metadata")):
                break
            time.sleep(0.1)
        process.kill()
    assert not (tmp_path / "tasks").exists()
    hub.stalls = ""
    done = fetch(hub, tmp_path / "tasks")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tasks" / "one" / "environment" / "big.bin").read_bytes() == bytes(range(256)) * 40
    assert hub.served.count("synth/one/environment/big.bin") == 2
    assert hub.served.count(str(whole[0].relative_to(there).with_suffix(""))) == 1


@pytest.mark.parametrize("path", ["synth/two/tests/test.sh", "synth/one/environment/big.bin"])
def test_other_bytes_of_the_same_size_are_refused_by_name(hub, tmp_path, path) -> None:
    hub.files[path] = hub.files[path].swapcase()[::-1]
    done = fetch(hub, tmp_path / "tasks")
    assert done.returncode == 1
    assert path in done.stderr
    assert not (tmp_path / "tasks").exists()


def test_a_commit_that_is_not_there_is_told(hub, tmp_path) -> None:
    done = fetch(hub, tmp_path / "tasks", revision="f" * 40)
    assert done.returncode == 1
    assert "could not be fetched" in done.stderr
    assert not (tmp_path / "tasks").exists()


def test_a_dataset_without_tasks_is_refused(tmp_path) -> None:
    with Hub(REPOSITORY, {"train.csv": b"a,b\n"}).running() as hub:
        done = fetch(hub, tmp_path / "tasks")
    assert done.returncode == 2
    assert "no set of tasks" in done.stderr


def test_two_tasks_of_one_name_and_unsafe_paths_are_listed(tmp_path) -> None:
    files = {**task("a/same"), **task("b/same"), **task("a/bad name"), **task("a/fine")}
    with Hub(REPOSITORY, files).running() as hub:
        hub.listed["a/../../out"] = b"x"
        done = fetch(hub, tmp_path / "tasks")
    assert done.returncode == 2
    assert all(word in done.stderr for word in ("same", "bad name", "a/../../out"))
    assert "fine" not in done.stderr
    assert not (tmp_path / "tasks").exists()


def test_a_hub_that_is_not_there_is_told(tmp_path, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise HTTPError("connection refused")  # what theirs are made of, after half a minute of retries

    monkeypatch.setattr(HfApi, "list_repo_tree", fail)
    with pytest.raises(RecipeError, match="could not be fetched") as failed:
        fetch_here(REPOSITORY, REVISION, tmp_path / "tasks")
    assert failed.value.exit_code == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["{", "7", '"x"', '{"repository": "x"}'])
def test_a_damaged_record_is_named(tmp_path, text) -> None:
    (tmp_path / "fetched.json").write_text(text)
    with pytest.raises(BadInputError, match="damaged"):
        fetched(tmp_path)
