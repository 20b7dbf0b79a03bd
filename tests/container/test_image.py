"""The build has every pin and the Containerfile none: it takes them all as arguments."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from recipe.container import image
from recipe.pins import load_pins

PINS = load_pins()
CONTAINERFILE = (image.CONTEXT / "Containerfile").read_text()
RECIPES = pytest.mark.parametrize("recipe", sorted(PINS.recipes))


def build_arguments(command: list[str]) -> dict[str, str]:
    pairs = [command[index + 1] for index, word in enumerate(command) if word == "--build-arg"]
    return dict(pair.split("=", 1) for pair in pairs)


@RECIPES
def test_the_build_has_the_commits_of_its_recipe_and_the_image_by_digest(recipe):
    given = build_arguments(image.build_command(PINS, recipe))
    sources = PINS.recipes[recipe].sources
    assert given["BASE"] == PINS.image.reference
    assert given["BASE"].endswith("@" + PINS.image.digest)
    for name in ("miles", "sglang"):
        assert given[f"{name.upper()}_URL"] == sources[name].url
        assert given[f"{name.upper()}_REV"] == sources[name].rev
        assert given[f"{name.upper()}_DIR"] == PINS.image.paths[name]


@RECIPES
def test_the_build_gives_exactly_the_arguments_that_the_containerfile_takes(recipe):
    taken = re.findall(r"^ARG (\S+)$", CONTAINERFILE, re.MULTILINE)
    assert set(taken) == set(build_arguments(image.build_command(PINS, recipe)))


def test_the_containerfile_installs_nothing_and_copies_files_that_exist():
    assert not re.search(r"\b(pip|uv|apt-get|conda)\b", CONTAINERFILE.split("FROM", 1)[1])
    (copied,) = re.findall(r"^COPY (.+) \S+/$", CONTAINERFILE, re.MULTILINE)
    assert all((image.CONTEXT / name).is_file() for name in copied.split())


def test_the_labels_and_the_record_come_from_the_arguments():
    labels = CONTAINERFILE[CONTAINERFILE.index("LABEL") :]
    for name in ("BASE", "RECIPE", "MILES_REV", "SGLANG_REV", "TAG"):
        assert f'"${{{name}}}"' in labels
    assert "printf '%s\\n' \"${PINS}\" > /etc/inkling-grpo/pins.json" in CONTAINERFILE


@RECIPES
def test_the_record_survives_the_shell_and_tells_where_each_source_is(recipe):
    command = image.build_command(PINS, recipe)
    record = build_arguments(shlex.split(shlex.join(command)))["PINS"]
    found = json.loads(record)
    assert found["recipe"] == recipe
    assert found["image"] == PINS.image.reference
    assert found["sources"]["miles"]["rev"] == PINS.recipes[recipe].sources["miles"].rev
    assert found["sources"]["sglang"]["path"] == PINS.image.paths["sglang"]
    assert "\n" not in record
    assert "'" not in record


def test_other_pins_are_another_image():
    camel, terminus2 = (image.tag(PINS, recipe) for recipe in ("camel", "terminus2"))
    moved = PINS.image.model_copy(update={"digest": "sha256:" + "0" * 64})
    assert len({camel, terminus2, image.tag(PINS.model_copy(update={"image": moved}), "camel")}) == 3
    assert image.tag(PINS, "camel") == camel


def test_podman_builds_with_the_same_words():
    docker, podman = (
        image.build_command(PINS, "camel", program=program, repository="registry.example/inkling")
        for program in ("docker", "podman")
    )
    assert docker[0] == "docker"
    assert podman[0] == "podman"
    assert docker[1:] == podman[1:]
    assert docker[docker.index("--tag") + 1] == f"registry.example/inkling:{image.tag(PINS, 'camel')}"
