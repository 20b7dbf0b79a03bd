"""A KubeRay manifest (RayCluster, ray.io/v1): one pod a node, all of its GPUs, the recipe's image."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import yaml

from recipe.container import image, node
from recipe.pins import Pins

SHARED, SHARED_MEMORY = "shared", "shared-memory"  # volumes of a pod
# Weights in bfloat16 and Adam's three float32 values, 14 bytes for each of 276B parameters over eight nodes, are
# 483 GB, offloaded to host memory. A pod that requests none of it is the first to be evicted. An estimate.
MEMORY_REQUEST = "600Gi"
# Kubernetes' forms of an object's name and of a resource that a device plugin offers; the GPUs are asked for anyway.
NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
RESOURCE = rf"(?!nvidia\.com/gpu$|[^/]*kubernetes\.io/){NAME}/[A-Za-z0-9]([\w.-]{{0,61}}[A-Za-z0-9])?"


@dataclass(frozen=True)
class KubeRayCluster:
    """What the cluster and its user choose.

    `claim` is a PersistentVolumeClaim that all pods may write; `rdma_resource` is the name under which the
    cluster's device plugin offers its InfiniBand devices (one a pod), or None.
    """

    image: str
    claim: str
    num_nodes: int
    rdma_resource: str | None = None


def manifest(pins: Pins, recipe: str, cluster: KubeRayCluster) -> str:
    """The manifest as YAML, ready for `kubectl apply`. Raises BadInputError for a value that can't work."""
    workers = node.check_num_nodes(cluster.num_nodes) - 1
    node.check_form("claim", cluster.claim, NAME, "the name of a PersistentVolumeClaim")
    if cluster.rdma_resource is not None:
        node.check_form("rdma_resource", cluster.rdma_resource, RESOURCE, "DOMAIN/NAME of the RDMA devices")
    check = image.check_command(pins, recipe)
    # The operator adds the addresses and the ports: they are the service's, not known before.
    ray = {"num-gpus": str(node.GPUS_PER_NODE), "disable-usage-stats": "true"}
    head = {"dashboard-host": node.DASHBOARD_HOST} | ray
    pod = {"spec": _pod(cluster, check)}
    content = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": node.container_name(recipe),
            "annotations": {"inkling-grpo/base-image": pins.image.reference},
        },
        "spec": {
            "headGroupSpec": {"rayStartParams": head, "template": pod},
            "workerGroupSpecs": [
                {
                    "groupName": "worker",
                    "replicas": workers,
                    "minReplicas": workers,
                    "maxReplicas": workers,
                    "rayStartParams": ray,
                    "template": pod,
                }
            ],
        },
    }
    # Through JSON, so that what the groups share is written out for each, as in every manifest.
    text: str = yaml.safe_dump(json.loads(json.dumps(content)), sort_keys=False, width=110)
    return text


def _pod(cluster: KubeRayCluster, check: list[str]) -> dict[str, Any]:
    limits: dict[str, Any] = {"nvidia.com/gpu": node.GPUS_PER_NODE}
    security = {}
    if cluster.rdma_resource is not None:
        limits[cluster.rdma_resource] = 1
        security = {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}
    return {
        "initContainers": [{"name": "check-pins", "image": cluster.image, "command": check}],
        "containers": [
            {
                "name": "ray",
                "image": cluster.image,
                "env": [{"name": name, "value": value} for name, value in node.RAY_ENVIRONMENT.items()],
                "resources": {"limits": limits, "requests": {"memory": MEMORY_REQUEST}},
                **security,
                "volumeMounts": [
                    {"name": SHARED_MEMORY, "mountPath": "/dev/shm"},  # noqa: S108 - a mount point
                    *(
                        {"name": SHARED, "mountPath": inside, "subPath": folder}
                        for folder, inside in node.FOLDERS.items()
                    ),
                ],
            }
        ],
        "volumes": [
            {
                "name": SHARED_MEMORY,
                "emptyDir": {"medium": "Memory", "sizeLimit": f"{node.SHARED_MEMORY_GIB}Gi"},
            },
            {"name": SHARED, "persistentVolumeClaim": {"claimName": cluster.claim}},
        ],
    }
