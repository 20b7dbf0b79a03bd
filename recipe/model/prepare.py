"""From nothing to what training starts from: the model downloaded, then converted; each step can be run again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from rich.console import Console

from recipe.errors import BadInputError
from recipe.files import require_folder
from recipe.model import convert
from recipe.model.download import download, require_no_other
from recipe.model.target import Target
from recipe.pins import Model
from recipe.run.interrupts import Interrupts
from recipe.settings import Settings


def prepare(
    settings: Settings,
    model: Model,
    hub: Mapping[str, str],
    console: Console,
    interrupts: Interrupts,
    *,
    download_only: bool = False,
    convert_only: bool = False,
    verify: Literal["quick", "full"] = "quick",
    dry_run: bool = False,
) -> None:
    """Fills MODEL_DIR, then TORCH_DIST_DIR; what is complete is skipped. A dry run writes and asks for nothing.

    `hub` holds HF_TOKEN, HF_ENDPOINT and the like for huggingface_hub. Raises BadInputError before anything is
    written where a step can't be done: fewer than 8 GPUs, no checkouts, another model, too small a disk.
    """
    if download_only and convert_only:
        raise BadInputError("nothing is left to do", expected="one of --download-only and --convert-only")
    name = f"{model.repository}@{model.revision}"
    weights = Target("MODEL_DIR", settings.model_dir, name)
    converted = Target("TORCH_DIST_DIR", settings.torch_dist_dir, name)
    folders = [Path(os.path.realpath(one.directory)) for one in (weights, converted)]
    if folders[0].is_relative_to(folders[1]) or folders[1].is_relative_to(folders[0]):
        raise BadInputError(
            "one of MODEL_DIR and TORCH_DIST_DIR lies in the other", expected="two folders", found=folders[0]
        )
    to_convert = not download_only and not convert.is_done(converted)
    _require_places(weights, converted, to_download=not convert_only, to_convert=to_convert)
    if dry_run:
        _show(settings, weights, console, to_download=not convert_only, to_convert=to_convert)
        return
    if to_convert:
        convert.require_machine(settings)
    if not convert_only:
        room = converted.directory if to_convert else None
        download(weights, hub, verify, room, console, interrupts)
    if to_convert:
        convert.convert(settings, converted, console, interrupts)
    if not download_only:
        console.print(f"TORCH_DIST_DIR is complete: {converted.directory}", soft_wrap=True)


def _require_places(weights: Target, converted: Target, *, to_download: bool, to_convert: bool) -> None:
    if to_convert:
        require_folder(converted.directory, converted.setting)
    if to_download:
        require_no_other(weights)
    elif weights.complete() is None:
        raise BadInputError("MODEL_DIR is not complete", found=weights.directory, run="make prepare")


def _show(
    settings: Settings, weights: Target, console: Console, *, to_download: bool, to_convert: bool
) -> None:
    state = "is complete" if weights.complete() else "is fetched from the hub"
    lines = [f"MODEL_DIR={weights.directory} {state}: {weights.model}"] if to_download else []
    if to_convert:
        lines += [f"{key}={value}" for key, value in convert.variables(settings).items()]
        lines += [shlex.join(convert.command(settings))]
        lines += [f"on {convert.GPUS} GPUs; here: {convert.count_gpus()}"]
        lines += [f"missing here: {path}" for path in convert.missing_checkouts(settings)]
    console.print("\n".join(lines) or "nothing is left to do", soft_wrap=True, markup=False, highlight=False)
