"""CLUSTER_CONFIG: a YAML file that names the cluster's nodes, read as settings."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recipe.errors import BadInputError
from recipe.given import Given
from recipe.untrusted import open_file


class _Node(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ip: str


class _Cluster(BaseModel):
    model_config = ConfigDict(extra="forbid")
    head: _Node
    workers: list[_Node] = []
    gpus_per_node: int | None = Field(default=None, ge=1)


def read_cluster_config(path: str) -> Given:
    """HEAD_IP, NUM_NODES and GPUS_PER_NODE as the file tells them. Raises BadInputError."""
    try:
        with open_file(Path(path).expanduser()) as file:
            cluster = _Cluster.model_validate(yaml.safe_load(file.read().decode()))
    except (OSError, RuntimeError, ValueError, yaml.YAMLError) as error:
        found = error.errors()[0] if isinstance(error, ValidationError) else None
        raise BadInputError(
            "CLUSTER_CONFIG can't be read",
            expected="YAML with gpus_per_node, head.ip and workers[].ip",
            found=f"{'.'.join(map(str, found['loc']))}: {found['msg']}" if found else error,
            where=path,
        ) from None
    addresses = [cluster.head.ip, *(worker.ip for worker in cluster.workers)]
    if len(set(addresses)) < len(addresses):
        raise BadInputError("CLUSTER_CONFIG names a node twice", found=", ".join(addresses), where=path)
    told = {"head_ip": cluster.head.ip, "num_nodes": len(addresses), "gpus_per_node": cluster.gpus_per_node}
    return {name: (str(value), f"CLUSTER_CONFIG {path}") for name, value in told.items() if value is not None}
