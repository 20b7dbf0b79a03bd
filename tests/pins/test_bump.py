"""Changing a pin: only its values change, what is rendered follows, and what is relied on is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from drifting import commit, git, only_drift, other_digit

from recipe.drift import bump, flake, rendered
from recipe.errors import BadInputError
from recipe.pins import FLAKE, UPSTREAM, load_pins
from recipe.resolve import load_checkouts

NEW = "abcdef0123" * 4


def test_only_the_commit_and_its_hash_change_and_the_readme_follows(tree, empty_folder):
    old = load_pins(tree).recipes["terminus2"].sources["miles"]
    before = (tree / UPSTREAM).read_text()
    told = list(bump.bump_source(tree, "terminus2", "miles", NEW, None, load_checkouts()))
    expected = before.replace(old.rev, NEW).replace(json.dumps(old.nar_hash), "null")
    assert (tree / UPSTREAM).read_text() == expected
    assert NEW in (tree / "README.md").read_text()
    assert not [line for line in rendered.check(tree, load_pins(tree)) if line.bad]
    assert told[0] == f"terminus2 miles: {old.rev} -> {NEW}"
    assert "written: README.md" in told
    assert any(old.reason in line for line in told)
    assert git(tree, "status", "--porcelain", "--untracked-files=no").count("AM") == 2


def test_a_given_hash_is_recorded(tree, empty_folder):
    nar_hash = "sha256-" + "A" * 43 + "="
    list(bump.bump_source(tree, "camel", "sglang", NEW, nar_hash, load_checkouts()))
    source = load_pins(tree).recipes["camel"].sources["sglang"]
    assert (source.rev, source.nar_hash) == (NEW, nar_hash)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("camle", "miles", NEW, None), "RECIPE is unknown\n  expected one of camel, terminus2"),
        (("terminus2", "camel", NEW, None), "SOURCE is unknown\n  expected one of miles, sglang, harbor"),
        (("camel", "miles", NEW[:12], None), "recipes.camel.miles.rev"),
        (("camel", "miles", NEW, "sha256-x"), "recipes.camel.miles.narHash"),
    ],
)
def test_a_bad_word_is_refused_and_nothing_is_written(tree, empty_folder, words, told):
    before, pins_before = (tree / UPSTREAM).read_text(), git(tree, "status", "--porcelain", "pins")
    with pytest.raises(BadInputError) as refused:
        list(bump.bump_source(tree, *words, load_checkouts()))
    assert told in str(refused.value)
    assert (tree / UPSTREAM).read_text() == before
    assert git(tree, "status", "--porcelain", "pins") == pins_before


def test_what_becomes_of_what_is_relied_on_is_read_from_the_checkout(tree, tmp_path, empty_folder):
    files = {
        "miles/utils/misc.py": "call_agent_abort_hook\n",
        "miles/ray/rollout/router_manager.py": "wait_for_server_ready(ip, port, process, timeout=30)\n",
    }
    old = commit(tmp_path / "miles", files)
    new = commit(tmp_path / "miles", {"miles/utils/misc.py": "", "miles/ray/rollout/router_manager.py": ""})
    chosen = load_checkouts([f"MILES_DIR={tmp_path / 'miles'}"])
    list(bump.bump_source(tree, "terminus2", "miles", old, None, load_checkouts()))
    told = "\n".join(bump.bump_source(tree, "terminus2", "miles", new, None, chosen))
    assert "surplus trials are cancelled: there -> MISSING" in told
    assert "session servers get time to start: MISSING -> there" in told
    assert "ordered blocks survive a replay: MISSING, no such file -> MISSING, no such file" in told
    told = "\n".join(bump.bump_source(tree, "terminus2", "miles", NEW, None, chosen))
    assert f"unknown, {tmp_path / 'miles'} lacks {NEW}" in told


def test_without_a_checkout_the_setting_that_names_it_is_told(tree, empty_folder):
    told = list(bump.bump_source(tree, "camel", "harbor", NEW, None, load_checkouts()))
    assert told[-1].endswith("what is relied on in harbor: a checkout as HARBOR_DIR shows it")


def test_an_input_of_the_flake_is_sealed_as_flake_lock_has_it(tree):
    lock = tree / "flake.lock"
    if not lock.is_file():
        pytest.skip("there is no flake.lock")
    rev = json.loads(lock.read_text())["nodes"]["uv2nix"]["locked"]["rev"]
    lock.write_text(lock.read_text().replace(rev, other_digit(rev)))
    only_drift(flake.check(tree, load_pins(tree)))
    told = list(bump.bump_flake_input(tree, "uv2nix"))
    assert told == [f"uv2nix: {FLAKE} seals {other_digit(rev)} as flake.lock has it"]
    assert not [line for line in flake.check(tree, load_pins(tree)) if line.bad]


def test_the_command_changes_the_pin_of_its_own_project(tree):
    command = ["pins-bump", "--recipe", "camel", "--source", "miles", "--rev", NEW, "AGENT=camel"]
    environment = dict(os.environ, PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(
        [sys.executable, "-m", "recipe", *command], cwd=tree, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert load_pins(tree).recipes["camel"].sources["miles"].rev == NEW


@pytest.mark.parametrize("content", ["{", "[]", '{"nodes": {}, "root": "root", "version": 7}'])
def test_an_input_that_flake_lock_does_not_tell_is_refused_and_nothing_is_written(tree, content):
    (tree / "flake.lock").write_text(content)
    before = (tree / FLAKE).read_text()
    with pytest.raises(BadInputError, match=r"flake\.lock"):
        list(bump.bump_flake_input(tree, "uv2nix"))
    assert (tree / FLAKE).read_text() == before


def test_without_recipe_and_commit_only_an_input_of_the_flake_is_taken(tree):
    with pytest.raises(BadInputError, match="RECIPE, SOURCE and REV; or SOURCE alone, one of nixpkgs"):
        list(bump.bump_flake_input(tree, "miles"))
