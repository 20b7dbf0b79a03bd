"""A node's commands: the flags that the recipe was run with, and refused values."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe.container import node

SHARED = node.mounts(Path("/srv/models"), Path("/srv/data"), Path("/srv/project"))


def options(command: list[str]) -> dict[str, list[str]]:
    """Each option with its values; a word after an option that is no option is its value."""
    found: dict[str, list[str]] = {}
    for word, following in zip(command, [*command[1:], "--"], strict=True):
        if word.startswith("--"):
            values = found.setdefault(word, [])
            values += [] if following.startswith("--") else [following]
    return found


def test_the_container_starts_with_the_flags_that_the_recipe_was_run_with():
    found = options(node.start_command("image:tag", "camel", SHARED))
    assert found["--gpus"] == ["all"]
    assert found["--network"] == ["host"]
    assert found["--ipc"] == ["host"]
    assert found["--shm-size"] == ["64g"]
    assert found["--ulimit"] == ["memlock=-1", "stack=67108864"]
    assert found["--volume"] == [
        "/srv/models:/root/models",
        "/srv/data:/data",
        "/srv/project:/workspace/inkling-grpo",
    ]


def test_infiniband_and_the_docker_socket_are_mounted_on_request_only():
    plain = node.start_command("image:tag", "camel", SHARED)
    both = node.start_command("image:tag", "camel", SHARED, infiniband=True, docker_socket=True)
    assert "/dev/infiniband" not in plain
    assert not any("docker.sock" in word for word in plain)
    assert options(both)["--device"] == ["/dev/infiniband"]
    assert "/var/run/docker.sock:/var/run/docker.sock" in options(both)["--volume"]
    assert both[-3:] == plain[-3:] == ["image:tag", "sleep", "infinity"]


@pytest.mark.parametrize(
    "command",
    [node.ray_head_command("10.0.0.1"), node.ray_worker_command("10.0.0.1", "10.0.0.2")],
    ids=["head", "worker"],
)
def test_ray_itself_takes_the_command(command, ray_start):
    assert command[:4] == ["env", "MALLOC_ARENA_MAX=2", "ray", "start"]
    taken = ray_start.make_context("ray start", command[4:]).params
    assert taken["num_gpus"] == 8
    assert taken["disable_usage_stats"]
    if taken["head"]:
        assert (taken["node_ip_address"], taken["port"]) == ("10.0.0.1", 6379)
        assert (taken["dashboard_host"], taken["dashboard_port"]) == ("0.0.0.0", 8265)
    else:
        assert (taken["node_ip_address"], taken["address"]) == ("10.0.0.2", "10.0.0.1:6379")
