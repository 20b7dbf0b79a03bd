"""Reads Megatron's torch_dist checkpoints on the CPU, a tensor at a time, without Megatron or a GPU.

The format is that of torch.distributed.checkpoint: `.metadata` (a pickle), written last, names the chunks of
every tensor; each chunk lies in a .distcp file as torch.save writes it.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from recipe.errors import BadInputError, RecipeError

METADATA = ".metadata"
# All that the metadata of torch 2.13 is made of. A pickle may name any function: of others nothing is called.
KNOWN = {
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
        *("TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "bfloat16", "float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"},
    "pathlib": {"Path", "PosixPath"},
    "collections": {"OrderedDict", "defaultdict"},
}


class _Unused:
    """Stands for what the metadata holds of Megatron's own classes."""

    def __init__(self, *_args: object, **_named: object) -> None: ...

    def __setstate__(self, _state: object) -> None: ...


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module, name) if name in KNOWN.get(module, ()) else _Unused


class TorchDist:
    """A checkpoint; `tensors` tells their shapes and types, without their values (device meta).

    Raises BadInputError when its metadata or a file is missing, cut or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._metadata = _read_metadata(directory)
        self._reader = FileSystemReader(directory)
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        self.tensors = {
            key: torch.empty(found.size, dtype=found.properties.dtype, device="meta")
            for key, found in self._metadata.state_dict_metadata.items()
            if isinstance(found, TensorStorageMetadata) and not key.startswith("optimizer.")
        }
        self._check_files()

    def read(self, keys: Iterable[str]) -> dict[str, Tensor]:
        """The tensors of `keys`, in that order. Raises RecipeError when a chunk can't be read."""
        found = {key: torch.empty_like(self.tensors[key], device="cpu") for key in keys}
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(found, self._metadata, is_coordinator=True)
        plan = planner.create_local_plan()
        if sum(math.prod(item.lengths) for item in plan.items) != sum(one.numel() for one in found.values()):
            raise BadInputError(f"the checkpoint lacks a part of {', '.join(found)}", where=self.directory)
        try:
            self._reader.read_data(plan, planner)
        except (RuntimeError, AssertionError, LookupError, ValueError, EOFError, pickle.PickleError) as error:
            raise RecipeError(
                f"the checkpoint's {', '.join(found)} can't be read", found=error, where=self.directory
            ) from error
        return found

    def _check_files(self) -> None:
        ends: dict[str, int] = {}
        for info in self._metadata.storage_data.values():
            ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
        sizes = {path.name: path.stat().st_size for path in self.directory.glob("*.distcp")}
        wrong = {name: sizes.get(name, "missing") for name in ends if sizes.get(name, -1) < ends[name]}
        if wrong:
            name = min(wrong)
            raise BadInputError(
                f"{len(wrong)} of the checkpoint's {len(ends)} files are missing or cut",
                expected=f"{name} with {ends[name]:,} bytes",
                found=wrong[name],
                where=self.directory,
            )


def _read_metadata(directory: Path) -> Metadata:
    try:
        with (directory / METADATA).open("rb") as file:
            found = _Unpickler(file).load()
    except Exception as error:  # a damaged pickle raises whatever it happens to call
        raise BadInputError(
            "the checkpoint can't be read", expected=METADATA, found=repr(error), where=directory
        ) from error
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise BadInputError("the checkpoint's metadata is damaged", where=directory / METADATA)
    return found
