"""Downloads the tasks of a Hugging Face dataset at one commit: every byte verified, all of them in place or none."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined] # of what they raise
from huggingface_hub.hf_api import RepoFile

from recipe.errors import BadInputError, RecipeError
from recipe.files import require_folder, write_whole
from recipe.tasks.folders import SAFE_NAME, fetched

AGAIN = "the same command again"


def fetch(repository: str, revision: str, output: Path) -> dict[str, Any]:
    """Puts each task of the repository into `output`, side by side; returns `folders.fetched(output)`.

    Raises BadInputError when `output` holds something else or the repository no tasks, RecipeError when the
    download fails or its bytes are not the repository's; what has come is kept beside `output` for the next call.
    """
    if not re.fullmatch("[0-9a-f]{40}", revision):
        raise BadInputError("not a commit", expected="--revision with 40 hex digits", found=revision)
    source = {"repository": repository, "revision": revision}
    if os.path.lexists(output):
        there = fetched(output) or {}
        if source.items() <= there.items():
            return there
        found = there or "no such tasks"
        raise BadInputError(
            "the folder for the tasks is there already", expected="a new one", found=found, where=output
        )
    require_folder(output.parent, "the folder for the tasks")
    partial = output.with_name(f".{output.name}.{revision}.partial")
    try:
        tree = HfApi().list_repo_tree(repository, repo_type="dataset", revision=revision, recursive=True)
        files = {one.path: one for one in tree if isinstance(one, RepoFile)}
        tasks = _tasks(files, f"{repository} at {revision}")
        snapshot_download(repository, repo_type="dataset", revision=revision, local_dir=partial)
        _verify(partial, repository, revision)
        files = {path: files[path] for path in sorted(files) if tasks & _parents(path)}
        listing = "".join(f"{path}\0{file.blob_id}\n" for path, file in files.items())
        sha256 = hashlib.sha256(listing.encode()).hexdigest()
        record = {**source, "tasks": len(tasks), "files": len(files), "sha256": sha256}
        _place(partial, tasks, record, output)
    except HFValidationError:
        raise BadInputError("no dataset's name", expected="OWNER/NAME", found=repository) from None
    except (HTTPError, OSError) as error:
        raise RecipeError("tasks could not be fetched", found=error, where=repository, run=AGAIN) from None
    return record


def _place(partial: Path, tasks: set[str], record: dict[str, Any], output: Path) -> None:
    whole = partial / ".tasks"
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir()
    for task in tasks:
        (partial / task).rename(whole / PurePosixPath(task).name)
    write_whole(whole / "fetched.json", json.dumps(record, indent=2) + "\n")
    whole.rename(output)
    shutil.rmtree(partial)


def _tasks(files: Iterable[str], where: str) -> set[str]:
    """The outermost folders with a task.toml; their last parts are the tasks' names."""
    marked = {path.removesuffix("/task.toml") for path in files if path.endswith("/task.toml")}
    tasks = {folder for folder in marked if not marked & _parents(folder)}
    names = Counter(PurePosixPath(folder).name for folder in tasks)
    wrong = [name for name, times in names.items() if times > 1 or not SAFE_NAME.fullmatch(name)]
    wrong += [path for path in files if ".." in path.split("/") or path.startswith("/")]
    if wrong or not tasks:
        expected = "folders with a task.toml, each with a safe name of its own"
        found = ", ".join(wrong) or "none"
        raise BadInputError("the dataset is no set of tasks", expected=expected, found=found, where=where)
    return tasks


def _parents(path: str) -> set[str]:
    return {str(folder) for folder in PurePosixPath(path).parents}


def _verify(folder: Path, repository: str, revision: str) -> None:
    """Raises RecipeError listing the files that are not what git or LFS names; they are fetched anew next time."""
    found = HfApi().verify_repo_checksums(
        repository, repo_type="dataset", revision=revision, local_dir=folder
    )
    wrong = [*found.missing_paths, *(one["path"] for one in found.mismatches)]
    for path in wrong:
        (folder / path).unlink(missing_ok=True)
    if wrong:
        raise RecipeError(f"{len(wrong)} files came damaged", found=", ".join(wrong), run=AGAIN)
