"""The conversion to Megatron's torch_dist format, by Miles' converter on 8 GPUs."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from rich.console import Console

from recipe.errors import BadInputError, RecipeError
from recipe.events import Tail
from recipe.given import child_environment
from recipe.model.program import run_program
from recipe.model.target import NOTES, Target
from recipe.programs import ask
from recipe.run.interrupts import Interrupts
from recipe.settings import Settings

TRACKER = "latest_checkpointed_iteration.txt"
GPUS = 8
# The model's own flags are a shell array in a file of Miles. A constant text: all that varies is arguments.
CONVERT = (
    'cd "$0" && source scripts/models/inkling-small.sh && '
    f"exec torchrun --nproc-per-node {GPUS} tools/convert_hf_to_torch_dist.py "
    '"${MODEL_ARGS[@]}" "$@"'
)
# A tensor and an expert parallel part for each GPU; no pipeline, whatever the number of GPUs (camel-ai/seta).
MESH = (
    *("--tensor-model-parallel-size", str(GPUS), "--pipeline-model-parallel-size", "1"),
    *("--expert-model-parallel-size", str(GPUS), "--expert-tensor-parallel-size", "1", "--sequence-parallel"),
)
NEEDED = ("scripts/models/inkling-small.sh", "tools/convert_hf_to_torch_dist.py")


def command(settings: Settings) -> list[str]:
    """The converter's command line."""
    where = ("--hf-checkpoint", str(settings.model_dir), "--save", str(settings.torch_dist_dir))
    return ["bash", "-c", CONVERT, str(settings.miles_dir), *MESH, *where]


def variables(settings: Settings) -> dict[str, str]:
    """What it needs in its environment."""
    return {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "CONVERT_KEEP_PP1": "1",
        "PYTHONPATH": f"{settings.miles_dir}:{settings.megatron_path}",
    }


def is_done(target: Target) -> bool:
    """Whether the conversion is complete. Raises BadInputError when something else is there, or a part of it."""
    files, there = target.complete(), target.paths()
    sizes = {name: path.stat().st_size for name, path in there.items()}
    if wrong := [name for name, of in (files or {}).items() if sizes.get(name) != of["size"]]:
        raise target.refusal(f"a damaged conversion: {wrong[0]} is missing or cut")
    if files or _is_released(target):
        return True
    if there and not target.marker.exists():
        raise target.refusal(f"{min(there)}, which this command did not write")
    return False


def require_machine(settings: Settings) -> None:
    """Raises BadInputError when the converter can't run here."""
    if missing := missing_checkouts(settings):
        raise BadInputError(
            "the conversion needs the checkouts of the image",
            expected="MILES_DIR and MEGATRON_PATH with the converter and Megatron",
            found=f"no {', no '.join(missing)}",
        )
    if (found := count_gpus()) < GPUS:
        raise BadInputError("the conversion needs more GPUs", expected=f"{GPUS} (nvidia-smi -L)", found=found)


def missing_checkouts(settings: Settings) -> list[str]:
    """What the converter needs of MILES_DIR and MEGATRON_PATH and is not there."""
    files = [settings.miles_dir / name for name in NEEDED]
    return [str(path) for path in (*files, settings.megatron_path / "megatron") if not path.exists()]


def count_gpus() -> int:
    told = ask(["nvidia-smi", "-L"], folder=Path("/"), seconds=60).stdout
    return sum(line.startswith("GPU ") for line in told.splitlines())


def convert(settings: Settings, target: Target, console: Console, interrupts: Interrupts) -> None:
    """Runs the converter from the start and shows its log. Raises RecipeError when it fails."""
    target.mark(None)
    for path in target.directory.iterdir():  # what an interrupted one left would end up inside the new one
        if path.name != NOTES:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    log = target.notes / "convert.log"
    log.unlink(missing_ok=True)
    console.print(shlex.join(command(settings)), soft_wrap=True, markup=False, highlight=False)
    tail = Tail(log)

    def watch() -> None:
        for line in tail.lines():
            console.out(line.decode(errors="replace"), highlight=False)

    run_program(
        "the converter",
        command(settings),
        log=log,
        env=child_environment(**variables(settings)),
        interrupts=interrupts,
        watch=watch,
    )
    if not _is_released(target) or not (target.directory / "release" / ".metadata").is_file():
        raise RecipeError("the converter wrote no checkpoint", expected=f"{TRACKER} and release/", where=log)
    target.mark({name: {"size": path.stat().st_size} for name, path in target.paths().items()})


def _is_released(target: Target) -> bool:
    tracker = target.directory / TRACKER
    is_there = os.access(tracker, os.R_OK) and tracker.is_file()
    return is_there and tracker.read_text(errors="replace").strip() == "release"
