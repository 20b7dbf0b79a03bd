"""A run's checkpoint in Hugging Face format, with the configuration, tokenizer and tensor names of the base.

Written into OUT.partial, shard by shard, and renamed at the end; a whole shard is not written again. Tensors
that training never touched (vision, audio, multi-token prediction) are copied from the base. What the local engine
trained has no base: its export has a configuration of its own and no tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipe.errors import BadInputError, RecipeError
from recipe.files import read_text, require_folder, write_whole
from recipe.model.card import card
from recipe.model.convert import TRACKER
from recipe.model.names import TEXT, assembled, made_of
from recipe.model.program import bytes_bar, require_space
from recipe.model.torch_dist import METADATA, TorchDist

INDEX = "model.safetensors.index.json"
RECORD = "export.json"
SHARD_BYTES = 5_000_000_000  # what transformers writes by default; a larger tensor has a shard of its own


def checkpoint_of(run: Path, iteration: int | None = None) -> Path:
    """A run's checkpoint, by default its latest; `run` itself when it has none. Raises BadInputError."""
    folder = run / "checkpoints"
    if iteration is None and not os.access(folder, os.F_OK):
        return run
    if iteration is None:
        text = read_text(folder / TRACKER).strip()
        if not text.isdecimal():
            raise BadInputError(
                "the tracker file is damaged", expected="a number", found=repr(text), where=folder / TRACKER
            )
        iteration = int(text)
    found = folder / f"iter_{iteration:07d}"
    if not found.is_dir():
        there = ", ".join(sorted(path.name for path in folder.glob("iter_*"))) or "none"
        raise BadInputError("there is no such checkpoint", expected=found.name, found=there, where=folder)
    return found


def export(checkpoint: Path, out: Path, base: Path, console: Console, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes `checkpoint`, of either engine, to the new directory `out`; `base` is what Miles' run started from.

    Memory: one shard, which is at most `shard_bytes` or one tensor, and once more while its parts are put together.
    A second call goes on where one stopped.
    Raises BadInputError when the checkpoint is not complete or is no Inkling of the base's shape, when `out` is
    there or does not fit on its disk; RecipeError when a weight can't be read or written.
    """
    checkpoint, out = checkpoint.absolute(), out.absolute()
    try:
        there = {path.name for path in checkpoint.iterdir()}
        found = ", ".join(sorted(there)) or "an empty folder"
    except OSError as error:
        there, found = set(), str(error)
    is_local = not there.isdisjoint(("complete.json", "model.safetensors"))
    if not is_local and ".metadata" not in there:
        expected = "a run's folder, or a checkpoint with complete.json or .metadata"
        raise BadInputError("there is nothing to export", expected=expected, found=found, where=checkpoint)
    _require_place(out, *([checkpoint] if is_local else [checkpoint, base]))
    partial = out.with_name(f"{out.name}.partial")
    if is_local:
        _export_local(checkpoint, partial)
    else:
        _export_torch_dist(checkpoint, partial, base, console, shard_bytes)
    write_whole(partial / "README.md", card(checkpoint, is_local=is_local))
    partial.rename(out)
    console.print(f"exported {checkpoint} to {out}", soft_wrap=True, highlight=False)


def _require_place(out: Path, *sources: Path) -> None:
    if os.path.lexists(out):
        raise BadInputError("the output is there already", expected="a new directory", found=out)
    for source in sources:
        if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(source)):
            raise BadInputError("the output would lie in what it is made of", found=out, where=source)
    require_folder(out.parent, "the output's folder")


def _export_local(checkpoint: Path, partial: Path) -> None:
    from recipe.engines.local.checkpoint import read_weights
    from recipe.engines.local.model import build_model, load_weights, tiny_config

    model = build_model(tiny_config())
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    load_weights(model, read_weights(checkpoint, shapes))
    require_space({partial: sum(weight.nbytes for weight in model.parameters())})
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)


def _export_torch_dist(
    checkpoint: Path, partial: Path, base: Path, console: Console, shard_bytes: int
) -> None:
    reader, originals = TorchDist(checkpoint), read_base(base)
    planned = _plan(originals, reader)
    # Told by their shapes and types alone, tensors of one file are not taken for one another.
    split = split_torch_state_dict_into_shards(
        {name: one.to("meta") for name, one in planned.items()}, max_shard_size=shard_bytes
    )
    shards = {
        file: {name: planned[name] for name in names} for file, names in split.filename_to_tensors.items()
    }
    left = {file: tensors for file, tensors in shards.items() if not _is_whole(partial / file, tensors)}
    size = sum(one.nbytes for tensors in left.values() for one in tensors.values())
    require_space({partial: size})
    sources = f"{[(name, one.dtype, one.shape) for name, one in originals.items()]} {shard_bytes}".encode()
    digest = hashlib.sha256((checkpoint / METADATA).read_bytes() + sources).hexdigest()
    _claim(partial, checkpoint, digest)
    if done := len(shards) - len(left):
        console.print(f"{done} of {len(shards)} shards are written already")
    with bytes_bar(console, "export", size) as advance:
        for file, tensors in left.items():
            _write_shard(partial / file, tensors, reader)
            advance(sum(one.nbytes for one in tensors.values()))
    _write_rest(partial, base, {"metadata": split.metadata, "weight_map": split.tensor_to_filename})


def read_base(base: Path) -> dict[str, Tensor]:
    """The tensors of a Hugging Face checkpoint, in its order, mapped and not read.

    Raises BadInputError when one, or a part, is missing.
    """
    listed: dict[str, str] = {}
    try:
        dict(json.loads(read_text(base / "config.json"))["text_config"])
        if not any(base.glob("tokenizer*")):
            raise FileNotFoundError("it has no tokenizer")
        if (base / INDEX).exists() or not (base / "model.safetensors").exists():
            listed = dict(json.loads(read_text(base / INDEX))["weight_map"])
        files = {
            file: load_file(base / file) for file in sorted(set(listed.values())) or ["model.safetensors"]
        }
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadInputError("a file of the base can't be read", found=repr(error), where=base) from error
    found = {(name, file) for file, tensors in files.items() for name in tensors}
    if listed and (wrong := set(listed.items()) ^ found):
        raise BadInputError("the index and the weights disagree", found=min(wrong)[0], where=base / INDEX)
    return {name: tensor for tensors in files.values() for name, tensor in tensors.items()}


def _plan(originals: dict[str, Tensor], reader: TorchDist) -> dict[str, Tensor]:
    """Every tensor of the export: the base's own where training never touched it, else its shape and type.

    Whatever the checkpoint has must have its place.
    """
    plan, unused = dict(originals), set(reader.tensors)
    for name, original in originals.items():
        if name.startswith(TEXT):
            rule, keys = made_of(name, original.shape, reader.tensors)
            parts = {key: reader.tensors[key] for key in keys}
            tensor = assembled(name, rule, parts, original.shape)
            dtype = _widened(name, original.dtype, {part.dtype for part in parts.values()})
            plan[name] = torch.empty_like(tensor, dtype=dtype)
            unused.difference_update(keys)
    if unused:
        raise BadInputError(
            f"the checkpoint has {len(unused)} tensors that have no place in the base",
            found=min(unused),
            where=reader.directory,
        )
    return plan


def _widened(name: str, base: torch.dtype, found: set[torch.dtype]) -> torch.dtype:
    """The type of an exported tensor: the base's, or float32 where training kept float32 for bfloat16."""
    if not found | {base} <= {torch.bfloat16, torch.float32}:
        raise BadInputError(f"{name} has another type", expected=base, found=", ".join(map(str, found)))
    return torch.float32 if torch.float32 in found else base


def _claim(partial: Path, checkpoint: Path, digest: str) -> None:
    """Makes the partial output, or takes that of the same export up again."""
    record = partial / RECORD
    facts = {"run": checkpoint.parent.parent.name, "checkpoint": checkpoint.name, "sources_sha256": digest}
    text = json.dumps(facts, indent=2)
    if not partial.exists():
        partial.mkdir(parents=True)
        write_whole(record, text)
    elif not record.is_file() or record.read_text() != text:
        raise BadInputError("another export was begun there", found=partial, run=f"rm -r {partial}")


def _is_whole(path: Path, planned: dict[str, Tensor]) -> bool:
    """Whether a shard was written to its end, with the names, shapes and types that were planned."""
    try:
        found, expected = (
            {name: (one.dtype, one.shape) for name, one in tensors.items()}
            for tensors in (load_file(path), planned)
        )
    except (OSError, SafetensorError):
        return False
    return found == expected


def _write_shard(path: Path, planned: dict[str, Tensor], reader: TorchDist) -> None:
    unfinished = path.with_suffix(".unfinished")
    with ThreadPoolExecutor() as pool:
        loaded = pool.map(lambda name: _tensor(name, planned[name], reader), planned)
        tensors = dict(zip(planned, loaded, strict=True))
    try:
        save_file(tensors, unfinished, metadata={"format": "pt"})
    except SafetensorError as error:
        raise RecipeError("a shard can't be written", found=error, where=unfinished) from error
    unfinished.rename(path)


def _tensor(name: str, planned: Tensor, reader: TorchDist) -> Tensor:
    if not name.startswith(TEXT):
        return planned
    rule, keys = made_of(name, planned.shape, reader.tensors)
    tensor = assembled(name, rule, reader.read(keys), planned.shape).to(planned.dtype).contiguous()
    # Nobody looks at the chunks' checksums: this finds weights that diverged, and some of the damage.
    if not tensor.sum().isfinite():
        raise BadInputError("the checkpoint holds NaN or infinity", found=name, where=reader.directory)
    return tensor


def _write_rest(partial: Path, base: Path, index: dict[str, Any]) -> None:
    """What lies beside the weights (configuration, tokenizer, licence), and the index."""
    for path in base.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and not path.name.startswith("."):
            shutil.copyfile(path, partial / path.name)
    write_whole(partial / INDEX, json.dumps(index, indent=2))
