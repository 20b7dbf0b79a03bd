"""A run's checkpoint in Hugging Face format, with the configuration, tokenizer and tensor names of the base.

Written into OUT.partial, shard by shard, and renamed at the end; a whole shard is not written again. Tensors
that training never touched (vision, audio, multi-token prediction) are copied from the base. What the local engine
trained has no base: its export has a configuration of its own and no tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from recipe.errors import BadInputError, RecipeError
from recipe.files import read_text, require_folder, write_whole
from recipe.model.card import card
from recipe.model.convert import TRACKER
from recipe.model.names import Piece, Shape, pieces
from recipe.model.program import bytes_bar, require_space

if TYPE_CHECKING:
    from torch import Tensor

    from recipe.model.torch_dist import TorchDist

INDEX = "model.safetensors.index.json"
RECORD = "export.json"
SHARD_BYTES = 5_000_000_000  # what transformers writes by default; a larger tensor has a shard of its own
TRAINED = {"BF16": "bfloat16", "F32": "float32"}  # the only types of trained tensors
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "F64": 8, "I64": 8}  # all others: 1


@dataclass(frozen=True)
class Planned:
    """A tensor of the export: its type, and its pieces, or None to copy it from the base's file."""

    dtype: str
    shape: Shape
    file: Path
    made_of: list[Piece] | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES.get(self.dtype, 1)


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

    Memory: one shard, which is at most `shard_bytes` or one tensor. A second call goes on where one stopped.
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
    require_space({partial: sum(4 * math.prod(shape) for shape in shapes.values())})
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)


def _export_torch_dist(
    checkpoint: Path, partial: Path, base: Path, console: Console, shard_bytes: int
) -> None:
    from recipe.model.torch_dist import METADATA, TorchDist

    reader, originals = TorchDist(checkpoint), read_base(base)
    shards = _shards(_plan(originals, reader), shard_bytes)
    left = {name: planned for name, planned in shards.items() if not _is_whole(partial / name, planned)}
    size = sum(one.size for planned in left.values() for one in planned.values())
    require_space({partial: size})
    sources = f"{[(name, one.dtype, one.shape) for name, one in originals.items()]} {shard_bytes}".encode()
    digest = hashlib.sha256((checkpoint / METADATA).read_bytes() + sources).hexdigest()
    _claim(partial, checkpoint, digest)
    if done := len(shards) - len(left):
        console.print(f"{done} of {len(shards)} shards are written already")
    with bytes_bar(console, "export", size) as advance:
        for name, planned in left.items():
            _write_shard(partial / name, planned, reader)
            advance(sum(one.size for one in planned.values()))
    _write_rest(partial, base, shards)


def read_base(base: Path) -> dict[str, Planned]:
    """The tensors of a Hugging Face checkpoint, in its order. Raises BadInputError when one, or a part, is missing."""
    from safetensors import SafetensorError, safe_open

    listed: dict[str, str] = {}
    try:
        dict(json.loads(read_text(base / "config.json"))["text_config"])
        if not any(base.glob("tokenizer*")):
            raise FileNotFoundError("it has no tokenizer")
        if (base / INDEX).exists() or not (base / "model.safetensors").exists():
            listed = dict(json.loads(read_text(base / INDEX))["weight_map"])
        found: dict[str, Planned] = {}
        for file in sorted(set(listed.values())) or ["model.safetensors"]:
            with safe_open(base / file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118  it can't be iterated over
                    part = opened.get_slice(name)
                    found[name] = Planned(part.get_dtype(), tuple(part.get_shape()), base / file)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadInputError("a file of the base can't be read", found=repr(error), where=base) from error
    if listed and (wrong := set(listed.items()) ^ {(name, one.file.name) for name, one in found.items()}):
        raise BadInputError("the index and the weights disagree", found=min(wrong)[0], where=base / INDEX)
    return found


def _plan(originals: dict[str, Planned], reader: TorchDist) -> Iterator[tuple[str, Planned]]:
    """Every tensor of the base with what it is made of; whatever the checkpoint has must have its place."""
    unused = set(reader.shapes)
    for name, original in originals.items():
        made_of = pieces(name, original.shape, reader.shapes)
        keys = {piece.key for piece in made_of or ()}
        dtype = _widened(name, original.dtype, {str(reader.dtype(key)).partition(".")[2] for key in keys})
        unused -= keys
        yield name, Planned(dtype, original.shape, original.file, made_of)
    if unused:
        raise BadInputError(
            f"the checkpoint has {len(unused)} tensors that have no place in the base",
            found=min(unused),
            where=reader.directory,
        )


def _widened(name: str, base: str, found: set[str]) -> str:
    """The type of an exported tensor: the base's, or float32 where training kept float32 for bfloat16."""
    if not found:
        return base
    if base not in TRAINED or not found <= set(TRAINED.values()):
        raise BadInputError(f"{name} has another type", expected=base, found=", ".join(sorted(found)))
    return "F32" if base == "F32" or "float32" in found else "BF16"


def _shards(plan: Iterator[tuple[str, Planned]], most: int) -> dict[str, dict[str, Planned]]:
    filled: list[dict[str, Planned]] = [{}]
    size = 0
    for name, planned in plan:
        if filled[-1] and size + planned.size > most:
            filled.append({})
            size = 0
        filled[-1][name] = planned
        size += planned.size
    count = len(filled)
    return {f"model-{i:05d}-of-{count:05d}.safetensors": shard for i, shard in enumerate(filled, 1)}


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


def _is_whole(path: Path, planned: dict[str, Planned]) -> bool:
    """Whether a shard was written to its end, with the names, shapes and types that were planned."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as shard:
            parts = {name: shard.get_slice(name) for name in shard.keys()}  # noqa: SIM118
            found = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    except (OSError, SafetensorError):
        return False
    return found == {name: (one.dtype, one.shape) for name, one in planned.items()}


def _write_shard(path: Path, planned: dict[str, Planned], reader: TorchDist) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    unfinished = path.with_suffix(".unfinished")
    with ThreadPoolExecutor() as pool:
        loaded = pool.map(lambda name: _tensor(name, planned[name], reader), planned)
        tensors = dict(zip(planned, loaded, strict=True))
    try:
        save_file(tensors, unfinished, metadata={"format": "pt"})
    except SafetensorError as error:
        raise RecipeError("a shard can't be written", found=error, where=unfinished) from error
    if not _is_whole(unfinished, planned):
        raise RecipeError("a shard is not as it was written", where=unfinished)
    unfinished.rename(path)


def _tensor(name: str, planned: Planned, reader: TorchDist) -> Tensor:
    import torch
    from safetensors import safe_open

    if planned.made_of is None:
        with safe_open(planned.file, "pt") as base:
            copied: Tensor = base.get_tensor(name)
            return copied
    tensor = torch.empty(planned.shape, dtype=getattr(torch, TRAINED[planned.dtype]))
    for piece in planned.made_of:
        reader.read(piece, tensor[piece.index])
    # Nobody looks at the chunks' checksums: this finds weights that diverged, and some of the damage.
    if not tensor.sum().isfinite():
        raise BadInputError("the checkpoint holds NaN or infinity", found=name, where=reader.directory)
    return tensor


def _write_rest(partial: Path, base: Path, shards: dict[str, dict[str, Planned]]) -> None:
    """What lies beside the weights (configuration, tokenizer, licence), and the index."""
    for path in base.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and not path.name.startswith("."):
            shutil.copyfile(path, partial / path.name)
    index: dict[str, Any] = {
        "metadata": {"total_size": sum(one.size for planned in shards.values() for one in planned.values())},
        "weight_map": {name: file for file, planned in shards.items() for name in planned},
    }
    write_whole(partial / INDEX, json.dumps(index, indent=2))
