"""A KubeRay manifest (RayCluster, ray.io/v1): one pod a node, all of its GPUs, the recipe's image."""

from __future__ import annotations

import json

import yaml

from recipe.container import image, node
from recipe.pins import Pins

TEMPLATE = image.CONTEXT / "kuberay.yaml"
# Kubernetes' forms of an object's name and of a resource that a device plugin offers; the GPUs are asked for anyway.
NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
RESOURCE = rf"(?!nvidia\.com/gpu$|[^/]*kubernetes\.io/){NAME}/[A-Za-z0-9]([\w.-]{{0,61}}[A-Za-z0-9])?"


def manifest(
    pins: Pins, recipe: str, *, repository: str, claim: str, num_nodes: int, rdma_resource: str | None = None
) -> str:
    """The manifest as YAML, ready for `kubectl apply`. Raises BadInputError for a value that can't work.

    `claim` is a PersistentVolumeClaim that all pods may write; `rdma_resource` is the name under which the
    cluster's device plugin offers its InfiniBand devices (one a pod), or None.
    """
    values = {
        "name": node.container_name(recipe),
        "base_image": pins.image.reference,
        "image": image.name(pins, recipe, repository),
        "check": json.dumps(image.check_command(pins, recipe)),
        "claim": node.check_form("claim", claim, NAME, "the name of a PersistentVolumeClaim"),
        "workers": str(node.check_num_nodes(num_nodes) - 1),
    }
    # Through JSON, so that what the groups share is written out for each, as in every manifest.
    content = json.loads(json.dumps(yaml.safe_load(node.filled(TEMPLATE, values))))
    if rdma_resource is not None:
        node.check_form("rdma_resource", rdma_resource, RESOURCE, "DOMAIN/NAME of the RDMA devices")
        for group in (content["spec"]["headGroupSpec"], *content["spec"]["workerGroupSpecs"]):
            (ray,) = group["template"]["spec"]["containers"]
            ray["resources"]["limits"][rdma_resource] = 1
            ray["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    text: str = yaml.safe_dump(content, sort_keys=False, width=110)
    return text
