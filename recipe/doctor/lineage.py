"""What a run starts from: LOAD_DIR's latest checkpoint, which must be whole and of this engine's model.

Only names, sizes and small text files are looked at, and nothing is unpickled: `.metadata` of Megatron's torch_dist,
a pickle that names the shards, is taken apart by pickletools, which runs nothing and finds a cut at any byte. A shard
that was cut, but not to nothing, shows only when it is loaded.
"""

from __future__ import annotations

import json
import pickletools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipe.errors import BadInputError
from recipe.files import read_text
from recipe.pins import load_pins
from recipe.settings import Settings

TRACKER = "latest_checkpointed_iteration.txt"
# --no-load-optim, --no-load-rng and --finetune; the local engine saves nothing else.
RESTORED = ("weights",)
NOT_RESTORED = ("optimizer", "rollout count", "data order")
SUFFIX = ".distcp"  # of the shards of torch.distributed.checkpoint


def lineage(settings: Settings) -> dict[str, Any] | None:
    """What the run starts from, for its manifest; None: no LOAD_DIR (the local engine's warm start).

    Keys: checkpoint (its path), run, iteration ("release": Megatron's conversion), model, restored, not_restored.
    Raises BadInputError for a LOAD_DIR without a whole checkpoint, or of another engine or model.
    """
    if settings.load_dir is None:
        return None
    iteration = _iteration(settings)
    checkpoint = settings.load_dir / (iteration if iteration == "release" else f"iter_{int(iteration):07d}")
    if settings.engine == "local":
        from recipe.engines.local.checkpoint import require_complete  # needs the extra that this engine needs

        require_complete(checkpoint)
    else:
        _require_shards(checkpoint)
    run, model = _past(settings)
    return {
        "checkpoint": str(checkpoint),
        "run": run,
        "iteration": iteration if iteration == "release" else int(iteration),
        "model": model,
        "restored": list(RESTORED),
        "not_restored": list(NOT_RESTORED),
    }


def told(facts: dict[str, Any]) -> str:
    """The launch's line about it."""
    origin = f"run {facts['run']}, iteration {facts['iteration']}" if facts["run"] else facts["model"]
    return (
        f"restored: {', '.join(facts['restored'])} of {origin} from {facts['checkpoint']}; "
        f"not restored: {', '.join(facts['not_restored'])}"
    )


def _iteration(settings: Settings) -> str:
    """What the tracker file says: digits, or `release` in a conversion for Megatron."""
    path = Path(str(settings.load_dir)) / TRACKER
    try:
        said = path.read_bytes().decode(errors="replace").strip()
    except OSError as error:
        of_run = (
            "LOAD_DIR holds no checkpoints",
            "a run's checkpoints/",
            "LOAD_DIR=<RUNS_ROOT>/<run>/checkpoints",
        )
        converted = ("TORCH_DIST_DIR holds no model", "what make prepare writes,", "make prepare")
        on_cluster = settings.engine == "miles" and settings.load_dir == settings.torch_dist_dir
        problem, folder, run = converted if on_cluster else of_run
        expected = f"{folder} with {TRACKER}"
        raise BadInputError(
            problem, expected=expected, found=error.strerror, where=settings.load_dir, run=run
        ) from None
    if re.fullmatch("[0-9]+", said) or (said == "release" and settings.engine == "miles"):
        return said
    names = "a number" if settings.engine == "local" else "a number or release"
    raise BadInputError(
        f"{TRACKER} does not name a checkpoint", expected=names, found=repr(said[:80]), where=path
    )


def _require_shards(checkpoint: Path) -> None:
    if found := list(_lacking(checkpoint)):
        raise BadInputError(
            "the checkpoint is not complete",
            expected="metadata.json, common.pt, .metadata and every shard that it names, none empty",
            found="\n".join(found),
            where=checkpoint,
        )


def _lacking(checkpoint: Path) -> Iterator[str]:
    if not checkpoint.is_dir():
        yield "no such folder"
        return
    sizes = {path.name: path.stat().st_size for path in checkpoint.iterdir() if path.is_file()}
    shards: set[str] = set()
    if sizes.get(".metadata"):
        try:
            shards = _named((checkpoint / ".metadata").read_bytes())
        except ValueError as error:
            yield f".metadata is cut or damaged: {error}"
    for name in ("metadata.json", "common.pt", ".metadata", *sorted(shards)):
        if not sizes.get(name):
            yield f"{name} is {'empty' if name in sizes else 'missing'}"
    if sizes.get("metadata.json"):
        text = (checkpoint / "metadata.json").read_bytes()
        if not re.search(rb'"sharded_backend":\s*"torch_dist"', text):
            yield f"metadata.json names no torch_dist: {text[:80]!r}"


def _named(index: bytes) -> set[str]:
    """The shards in a pickle. Raises ValueError when it is cut, is none or names none."""
    found = {str(text) for _, text, _ in pickletools.genops(index) if str(text).endswith(SUFFIX)}
    if not found:
        raise ValueError("it names no shards")
    return found


def _past(settings: Settings) -> tuple[str | None, str]:
    """Name and model of the run that saved the checkpoint, by the manifest beside it."""
    path = Path(str(settings.load_dir)).parent / "run_manifest.json"
    model = load_pins().model
    if not path.is_file():
        converted = settings.load_dir == settings.torch_dist_dir
        return None, f"{model.repository}@{model.revision}" if converted else f"a model without {path.name}"
    try:
        manifest = json.loads(read_text(path))
        run, engine = (str(manifest["settings"][name]["value"]) for name in ("run_name", "engine"))
        trained = str(manifest["pins"]["model"]) if engine == "miles" else "the local engine's tiny Inkling"
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError("an earlier run's manifest is damaged", found=repr(error), where=path) from None
    expected = (settings.engine, model.repository if engine == "miles" else trained)
    found = (engine, trained.partition("@")[0])
    if expected != found:
        raise BadInputError(
            "the checkpoint is of another model",
            expected=f"engine {expected[0]}, {expected[1]}",
            found=f"engine {found[0]}, {found[1]}",
            where=path,
        )
    return run, trained
