"""CI's workflows ask for nothing more than they need; Renovate finds the pins that it is to find."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from recipe.pins import PROJECT_ROOT, load_pins

PINS = load_pins()
WORKFLOWS = sorted((PROJECT_ROOT / ".github" / "workflows").glob("*.yml"))
EVERY_WORKFLOW = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def jobs(path: Path) -> dict:
    return yaml.safe_load(path.read_text())["jobs"]


@EVERY_WORKFLOW
def test_a_workflow_may_read_the_repository_and_no_more(path):
    assert yaml.safe_load(path.read_text())["permissions"] == {}
    for job in jobs(path).values():
        assert job["permissions"] == {"contents": "read"}
        assert job["timeout-minutes"] <= (45 if path.name == "ci.yml" else 120)
        for step in job["steps"]:
            if "uses" in step:
                assert step["with"] == {"persist-credentials": False}


@EVERY_WORKFLOW
def test_each_command_is_a_target_of_the_makefile(path):
    targets = set(re.findall(r"^([a-z0-9-]+):", (PROJECT_ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^ +run: .*\bmake ([a-z-]+)", path.read_text(), re.MULTILINE))
    named |= {
        target
        for job in jobs(path).values()
        for target in job.get("strategy", {}).get("matrix", {}).get("target", [])
    }
    assert named
    assert named <= targets


def test_a_change_is_checked_by_all_of_them_and_the_night_requires_the_network():
    ci, nightly = (path.read_text() for path in WORKFLOWS)
    assert set(jobs(WORKFLOWS[0])["make"]["strategy"]["matrix"]["target"]) == {
        "lint",
        "types",
        "test",
        "smoke",
        "pins-check",
        "audit",
    }
    assert "make flake-check" in ci
    assert "make pins-check ONLINE=require" in nightly


def renovate_finds(path: str) -> list[dict[str, str]]:
    """What Renovate's custom managers read from a file, by the names of their groups."""
    found = []
    for manager in json.loads((PROJECT_ROOT / "renovate.json").read_text())["customManagers"]:
        (file_pattern,) = manager["managerFilePatterns"]
        if re.search(file_pattern.strip("/"), path):
            for pattern in manager["matchStrings"]:
                text = (PROJECT_ROOT / path).read_text()
                found += [match.groupdict() for match in re.finditer(pattern.replace("(?<", "(?P<"), text)]
    return found


def test_renovate_finds_every_source_without_a_hash_and_the_image():
    found = [match["currentDigest"] for match in renovate_finds("pins/upstream.json")]
    sources = [source for recipe in PINS.recipes.values() for source in recipe.sources.values()]
    without_hash = [source.rev for source in sources if source.nar_hash is None]
    assert sorted(found) == sorted([*without_hash, PINS.image.digest])


def test_renovate_finds_every_tool():
    found = {match["depName"]: match["currentValue"] for match in renovate_finds("pins/tools.json")}
    assert found == {name: tool.version for name, tool in PINS.tools.items()}
