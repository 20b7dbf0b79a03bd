"""The KubeRay manifest: of the RayCluster's structure, with the whole node and the pinned image in each pod."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import jsonschema
import pytest
import yaml

from recipe.container import image, kuberay, node
from recipe.pins import load_pins

PINS = load_pins()
SCHEMA = json.loads(Path(__file__).with_name("raycluster.schema.json").read_text())
CLUSTER = {
    "repository": "registry.example/inkling",
    "claim": "shared",
    "num_nodes": 8,
    "rdma_resource": "rdma/hca",
}


def manifest(**chosen: object) -> dict:
    (content,) = yaml.safe_load_all(kuberay.manifest(PINS, "camel", **CLUSTER | chosen))
    return content


def groups(content: dict) -> list[dict]:
    return [content["spec"]["headGroupSpec"], *content["spec"]["workerGroupSpecs"]]


def pods(content: dict) -> list[dict]:
    return [group["template"]["spec"] for group in groups(content)]


@pytest.mark.parametrize("chosen", [{}, {"num_nodes": 6, "rdma_resource": None}])
def test_the_manifest_has_the_structure_of_a_raycluster(chosen):
    jsonschema.validate(manifest(**chosen), SCHEMA)


@pytest.mark.parametrize(
    "steps",
    [
        ("spec", "headGroupSpec", "template", "spec", "containers", 0, "volumeMount"),
        ("spec", "workerGroupSpecs", 0, "replica"),
        ("spec", "headGroupSpec", "rayStartParams", "num-gpus"),
    ],
)
def test_a_misspelt_key_or_a_number_for_a_string_is_not_the_structure(steps):
    content = deepcopy(manifest())
    *path, last = steps
    place = content
    for step in path:
        place = place[step]
    place[last] = 8
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, SCHEMA)


def test_each_pod_has_the_gpus_the_shared_memory_and_the_folders_of_a_node():
    content = manifest()
    for pod in pods(content):
        (ray,) = pod["containers"]
        assert ray["resources"]["limits"] == {"nvidia.com/gpu": 8, "rdma/hca": 1}
        assert ray["env"] == [{"name": "MALLOC_ARENA_MAX", "value": "2"}]
        mounted = {mount["mountPath"]: mount["name"] for mount in ray["volumeMounts"]}
        assert set(mounted) == {"/dev/shm", *node.INSIDE}
        volumes = {volume.pop("name"): volume for volume in pod["volumes"]}
        assert set(mounted.values()) == set(volumes)
        assert volumes[mounted["/dev/shm"]] == {"emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}
        assert volumes[mounted["/data"]] == {"persistentVolumeClaim": {"claimName": "shared"}}


def test_each_pod_checks_its_pins_before_ray_starts():
    for pod in pods(manifest()):
        images = {one["image"] for one in pod["containers"] + pod["initContainers"]}
        assert images == {f"registry.example/inkling:{image.tag(PINS, 'camel')}"}
        assert pod["initContainers"][0]["command"] == image.check_command(PINS, "camel")


def test_the_workers_are_all_nodes_but_the_head_and_their_number_is_fixed():
    (workers,) = manifest(num_nodes=7)["spec"]["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 6


def test_ray_itself_takes_the_start_parameters(ray_start):
    for group in groups(manifest()):
        # As the operator writes them: a flag for true, --name=value else.
        words = [
            f"--{name}" if value == "true" else f"--{name}={value}"
            for name, value in group["rayStartParams"].items()
        ]
        assert ray_start.make_context("ray start", words).params["num_gpus"] == 8


def test_without_rdma_devices_nothing_is_asked_for():
    for pod in pods(manifest(rdma_resource=None)):
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
        assert "securityContext" not in pod["containers"][0]
