"""The model's repository at the pinned revision, file by file as the hub lists it."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from rich.console import Console

from recipe.errors import BadInputError, RecipeError
from recipe.files import read_text, require_folder
from recipe.given import child_environment
from recipe.model.program import bytes_bar, require_space, run_program
from recipe.model.target import NOTES, Files, Target
from recipe.run.interrupts import Interrupts

# A process of its own: threads that download can't be interrupted. Files that are there already are kept.
FETCH = (
    "import sys; from huggingface_hub import snapshot_download; "
    "snapshot_download(sys.argv[1], revision=sys.argv[2], local_dir=sys.argv[3])"
)
WEIGHTS = ".safetensors"
# Miles' scripts/models/inkling-small.sh at 80a25cb, by the names that config.json has for them.
TEXT_SIZES: dict[str, Any] = {
    "num_hidden_layers": 42, "hidden_size": 4096, "intermediate_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 6,
    "vocab_size": 201024, "rms_norm_eps": 1e-6,
}  # fmt: skip
MODEL_TYPE = "inkling_mm_model"


def download(
    target: Target,
    hub: Mapping[str, str],
    verify: Literal["quick", "full"],
    conversion: Path | None,
    console: Console,
    interrupts: Interrupts,
) -> None:
    """Fetches what `target` lacks, and checks names and sizes, with `full` also every file's hash.

    `hub` holds the variables of huggingface_hub; `conversion` is where a copy of the weights has to fit as well.
    Raises BadInputError for another model, revision or too small a disk, RecipeError when the hub fails.
    """
    known = target.complete()
    files = list_files(target.model, hub) if known is None else known
    if foreign := sorted(set(target.paths()) - set(files)):
        raise target.refusal(f"{foreign[0]} ({len(foreign)} files that are not the model's)")
    wrong = wrong_files(target.directory, files, full=verify == "full" and known is not None)
    if not wrong:
        console.print(f"{target.setting} is complete: {target.model}", soft_wrap=True)
    missing = sum(files[name]["size"] for name in wrong)
    copy = sum(of["size"] for name, of in files.items() if name.endswith(WEIGHTS))
    require_space({target.directory: missing} | ({conversion: copy} if conversion else {}))
    if wrong or known is None:
        require_folder(target.directory, target.setting)
        target.mark(None)
        for name in wrong:  # what is there of them is cut or damaged
            (target.directory / name).unlink(missing_ok=True)
        total = sum(of["size"] for of in files.values())
        _fetch(target, hub, total, missing, console, interrupts)
        if wrong := wrong_files(target.directory, files, full=verify == "full"):
            raise RecipeError(
                f"{len(wrong)} files are not as the hub lists them", found=wrong[0], where=target.directory
            )
        require_config(target.directory / "config.json")
        target.mark(files)


def require_no_other(target: Target) -> None:
    """Raises BadInputError for all that keeps the model out of its directory and shows without the hub."""
    if target.complete() is None:
        require_folder(target.directory, target.setting)
    if (target.directory / "config.json").exists():
        require_config(target.directory / "config.json")


def list_files(model: str, hub: Mapping[str, str]) -> Files:
    """The files of repository@revision. Raises BadInputError when it is not there or not for this token."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
    from huggingface_hub.hf_api import RepoFile

    repository, _, revision = model.partition("@")
    api = HfApi(endpoint=hub.get("HF_ENDPOINT"), token=hub.get("HF_TOKEN"))
    try:
        tree = list(api.list_repo_tree(repository, revision=revision, recursive=True))
    except (RevisionNotFoundError, GatedRepoError, RepositoryNotFoundError) as error:
        problem = {RevisionNotFoundError: "no such revision", GatedRepoError: "not for this token"}
        raise BadInputError(
            "the hub does not give the model",
            expected=model,
            found=problem.get(type(error), "no such repository, or not for this token"),
            run="HF_TOKEN=... in the environment or in .env",
        ) from None
    except Exception as error:  # of whichever HTTP library the hub's uses
        raise RecipeError("the hub does not answer", found=error, where=model) from error
    files = {
        one.path: {"size": one.size, "sha256": one.lfs and one.lfs.sha256, "blob": one.blob_id}
        for one in tree
        if isinstance(one, RepoFile)
    }
    for name in files:
        if name.startswith("/") or {"..", NOTES} & set(PurePosixPath(name).parts):
            raise BadInputError("the hub lists a file outside of the model", found=name, where=model)
    return files


def wrong_files(directory: Path, files: Files, *, full: bool) -> list[str]:
    """Which are missing or of another size; with `full`, also those of another content."""

    def is_wrong(name: str) -> bool:
        path, of = directory / name, files[name]
        is_there = path.is_file() and path.stat().st_size == of["size"]
        if not is_there or not full:
            return not is_there
        with path.open("rb") as file:
            if of["sha256"]:
                return hashlib.file_digest(file, "sha256").hexdigest() != str(of["sha256"])
            content = b"blob %d\0%s" % (of["size"], file.read())  # a small file, by git's own hash
            return hashlib.sha1(content).hexdigest() != str(of["blob"])  # noqa: S324

    with ThreadPoolExecutor() as pool:
        return [name for name, wrong in zip(files, pool.map(is_wrong, files), strict=True) if wrong]


def require_config(path: Path) -> None:
    """Raises BadInputError when config.json is not that of the model that Miles' flags describe."""
    try:
        config = json.loads(read_text(path))
        text = config["text_config"]
        found = {"model_type": config["model_type"], **{name: text.get(name) for name in TEXT_SIZES}}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInputError("config.json is of another model", found=repr(error), where=path) from error
    expected = {"model_type": MODEL_TYPE, **TEXT_SIZES}
    for name in (name for name in expected if expected[name] != found[name]):
        raise BadInputError(
            f"config.json is of another model: {name}", expected=expected[name], found=found[name], where=path
        )


def _fetch(
    target: Target, hub: Mapping[str, str], total: int, missing: int, console: Console, interrupts: Interrupts
) -> None:
    unfinished = target.directory / ".cache" / "huggingface" / "download"
    for path in unfinished.rglob("*.incomplete"):  # huggingface_hub begins a file anew
        path.unlink()
    shown, due = total - missing, 0.0
    with bytes_bar(console, "download", total, shown) as advance:

        def watch() -> None:
            nonlocal shown, due
            if time.monotonic() > due:  # looking at every file takes time on a network disk
                now = sum(map(_written, [*target.paths().values(), *unfinished.rglob("*.incomplete")]))
                advance(now - shown)
                shown, due = now, time.monotonic() + 1

        run_program(
            "the download",
            [sys.executable, "-P", "-c", FETCH, *target.model.split("@"), str(target.directory)],
            log=target.notes / "download.log",
            env=child_environment(**hub, HF_HUB_DISABLE_PROGRESS_BARS="1"),
            interrupts=interrupts,
            watch=watch,
        )


def _written(path: Path) -> int:
    try:
        return min(
            path.stat().st_size, path.stat().st_blocks * 512
        )  # a part that is fetched first may lie last
    except FileNotFoundError:  # renamed meanwhile
        return 0
