"""The Containerfile's steps, run in a sandbox whose root is a stand-in for the pinned image.

No container engine is needed: ARG, COPY and RUN are all that changes the file system, and they are read here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from recipe.container import image
from recipe.harbor.bwrap import find_bwrap
from recipe.pins import Pins, load_pins

URL = load_pins().recipes["camel"].sources["sglang"].url


def steps(arguments: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Each RUN line with the build arguments that were declared above it."""
    text = (image.CONTEXT / "Containerfile").read_text()
    declared: dict[str, str] = {}
    found = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        word, _, rest = line.partition(" ")
        if word == "ARG" and rest in arguments:
            declared[rest] = arguments[rest]
        elif word == "RUN":
            found.append((rest, dict(declared)))
    return found


@pytest.fixture
def build(tmp_path, upstream, checkout):
    """Builds the image of pins at a commit; gives the last step's process and the folder that is /etc/inkling-grpo."""
    scripts, record = tmp_path / "scripts", tmp_path / "record"
    shutil.copytree(image.CONTEXT, scripts)
    record.mkdir()
    shutil.copytree(checkout.folder, tmp_path / "miles")
    shutil.copytree(checkout.folder, tmp_path / "sglang")
    root = [
        *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
        *("--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        *("--ro-bind", str(upstream.folder), "/upstream", "--ro-bind", str(scripts), image.SCRIPTS),
        *("--bind", str(tmp_path / "miles"), "/root/miles"),
        *("--bind", str(tmp_path / "sglang"), "/sgl-workspace/sglang"),
        *("--bind", str(record), "/etc/inkling-grpo"),
        *("--unshare-all", "--die-with-parent", "--clearenv"),
    ]
    environment = {
        "PATH": "/usr/bin",
        "HOME": "/tmp",
        "PYTHONPATH": "/sgl-workspace/sglang/python",
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "url.file:///upstream.insteadOf",
        "GIT_CONFIG_VALUE_0": URL,
        "GIT_CONFIG_KEY_1": "safe.directory",
        "GIT_CONFIG_VALUE_1": "*",
    }

    def run(pins: Pins, **changed: str) -> tuple[subprocess.CompletedProcess[str], Path]:
        words = image.build_command(pins, "camel")
        pairs = [words[index + 1].split("=", 1) for index, word in enumerate(words) if word == "--build-arg"]
        for command, declared in steps(dict(pairs) | changed):
            variables = [x for pair in (environment | declared).items() for x in ("--setenv", *pair)]
            argv = [find_bwrap(), *root, *variables, "/bin/sh", "-c", command]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                break
        return done, record

    return run


def pins_at(rev: str) -> Pins:
    pins = load_pins()
    source = pins.recipes["camel"].sources["sglang"].model_copy(update={"rev": rev})
    recipe = pins.recipes["camel"].model_copy(update={"root": {"miles": source, "sglang": source}})
    return pins.model_copy(update={"recipes": {"camel": recipe}})


def test_a_build_ends_with_both_sources_at_their_commits_and_the_record(build, upstream):
    rev = upstream.commit("pinned")
    pins = pins_at(rev)
    done, record = build(pins)
    assert done.returncode == 0, done.stderr
    text = (record / "pins.json").read_text()
    assert text == image.record(pins, "camel") + "\n"
    assert json.loads(text)["sources"]["miles"]["rev"] == rev
    assert done.stdout.count(f" {rev}\n") == 2


def test_a_commit_that_upstream_does_not_have_fails_the_build(build, upstream):
    upstream.commit("pinned")
    done, record = build(pins_at("ab" * 20))
    assert done.returncode == 1
    assert "could not be fetched" in done.stderr
    assert not (record / "pins.json").exists()


def test_a_commit_that_is_not_the_recorded_one_fails_the_build(build, upstream):
    pinned, newer = upstream.commit("pinned"), upstream.commit("newer")
    done, _ = build(pins_at(pinned), SGLANG_REV=newer)
    assert done.returncode == 1
    assert "sglang is at another commit" in done.stderr
    assert pinned in done.stderr
    assert newer in done.stderr


@pytest.mark.parametrize("name", ["MILES_URL", "MILES_REV", "SGLANG_DIR", "PINS", "TAG"])
def test_an_argument_that_was_not_given_fails_the_build(build, upstream, name):
    done, _ = build(pins_at(upstream.commit("pinned")), **{name: ""})
    assert done.returncode != 0
    assert done.stderr
