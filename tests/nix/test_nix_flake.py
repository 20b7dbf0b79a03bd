"""The flake: Nix and Python read the same pins and write the same texts; what is wrong stops it and is named."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess

import pytest
from flake_copy import PROJECT, STAND_IN

from recipe.container.image import build_command
from recipe.pins import load_pins

COMMIT = load_pins().recipes["camel"].sources["sglang"].rev
SHORT = COMMIT[:-1]


def test_nix_and_python_read_the_same_pins(flake):
    pins = load_pins()
    found = flake.read("lib.pins")
    assert found == json.loads((PROJECT / "pins" / "upstream.json").read_text())
    assert flake.read("lib.image") == pins.image.reference
    for name, recipe in pins.recipes.items():
        commits = {source: one["rev"] for source, one in found["recipes"][name].items()}
        assert commits == {source: one.rev for source, one in recipe.sources.items()}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (COMMIT, SHORT, f'recipes.camel.sglang.rev: expected a commit of 40 hex digits, found "{SHORT}"'),
        (f'"{COMMIT}"', "7", "recipes.camel.sglang.rev: expected a commit of 40 hex digits, found 7"),
        ('"sglang": {', '"sg-lang": {', "recipes.camel.sg-lang: unknown key"),
        ('"sglang": {', '"sg-lang": {', "recipes.camel.sglang: missing"),
        ('"recipes": {', '"recipes": 5, "other": {', "recipes: expected an object, found 5"),
    ],
)
def test_a_malformed_pin_stops_the_evaluation_and_is_named(flake, old, new, said):
    flake.change("pins/upstream.json", old, new)
    assert f"pins/upstream.json: {said}" in flake.refusal("lib.pins")


def test_a_source_that_no_recipe_has_is_named_with_those_there_are(flake):
    said = flake.refusal("lib.sourceOf", "--apply", 'of: of "terminus2" "camel"')
    assert "pins/upstream.json: recipes.terminus2 has no camel; it has harbor, miles, sglang" in said


def test_sources_are_the_trees_of_their_commits_which_no_branch_needs_to_end_with(
    flake, tmp_path, monkeypatch
):
    repository, url = tmp_path / "upstream", "https://sources.invalid/upstream.git"
    git = ["git", "-C", str(repository), "-c", "user.name=test", "-c", "user.email=test@sources.invalid"]
    subprocess.run(["git", "init", "--quiet", "--initial-branch=side", str(repository)], check=True)
    for content in ("pinned", "newer"):
        (repository / "file").write_text(content)
        subprocess.run([*git, "add", "file"], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", content], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD~1"], capture_output=True, text=True, check=True)
    pins = json.loads((flake.folder / "pins" / "upstream.json").read_text())
    for source in pins["recipes"]["camel"].values():
        source |= {"url": url, "rev": commit.stdout.strip()}
    (flake.folder / "pins" / "upstream.json").write_text(json.dumps(pins))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{repository}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", url)
    sources = flake.build("sources-camel")
    assert {link.name: (link / "file").read_text() for link in sources.iterdir()} == dict.fromkeys(
        ("miles", "sglang", "harbor", "camel"), "pinned"
    )


def test_a_lock_that_does_not_have_the_inputs_of_the_flake_is_noticed(flake):
    command = ("flake", "lock", "path:.", "--no-update-lock-file", "--offline")
    assert flake.nix(*command).returncode == 0
    flake.change("flake.lock", '"ref": "nixos-', '"ref": "nixpkgs-')
    assert flake.nix(*command).returncode != 0


@pytest.mark.parametrize("recipe", ["camel", "terminus2"])
def test_the_containerfile_has_the_arguments_that_python_builds_with(flake, recipe):
    command = build_command(load_pins(), recipe)
    wanted = {command[at + 1] for at, word in enumerate(command) if word == "--build-arg"}
    text = flake.build(f"containerfile-{recipe}").read_text()
    # As the builder reads a line: words, without their quotes.
    given = {shlex.split(line)[1] for line in text.splitlines() if line.startswith("ARG ")}
    assert given == wanted
    template = (PROJECT / "container" / "Containerfile").read_text()
    assert re.sub(r"^(ARG \w+)=.*$", r"\1", text, flags=re.MULTILINE) == template


def test_an_argument_of_the_containerfile_without_a_value_is_named(flake):
    flake.change("container/Containerfile", "ARG TAG", "ARG TAG\nARG OTHER")
    said = flake.refusal("packages.x86_64-linux.containerfile-camel.text", *STAND_IN)
    assert "nix/container.nix has no value for ARG OTHER" in said


def test_a_shell_reads_every_commit_from_pins_env(flake):
    script = (
        f". {flake.build('pins-env')} && echo $IMAGE $MODEL_REVISION $CAMEL_MILES_REV $TERMINUS2_HARBOR_REV"
    )
    found = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    pins = load_pins()
    assert found.stdout.split() == [
        pins.image.reference,
        pins.model.revision,
        pins.recipes["camel"].sources["miles"].rev,
        pins.recipes["terminus2"].sources["harbor"].rev,
    ]


def test_the_dev_shell_runs_a_command_with_its_tools_and_variables(flake):
    script = "command -v make; echo $UV_PYTHON $UV_PYTHON_DOWNLOADS $LD_LIBRARY_PATH $TMPDIR"
    done = flake.nix("develop", "path:.", *STAND_IN, "-c", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    make, variables = done.stdout.splitlines()
    assert make.startswith(f"{flake.store}/store/")
    python, downloads, libraries, temporary = variables.split()
    assert (python, downloads, temporary) == ("3.12", "never", os.environ.get("TMPDIR", "/tmp"))
    assert libraries.count("/lib:") == 1
    assert libraries.endswith("/lib")


def test_a_tool_that_nixpkgs_lacks_is_named(flake):
    flake.change("nix/tools.json", '"kubectl"', '"kubectl2"')
    said = flake.refusal("devShells.x86_64-linux.cluster.drvPath", *STAND_IN)
    assert "nix/tools.json: nixpkgs has no kubectl2" in said


def test_each_make_target_is_an_app_that_runs_it(flake):
    targets = subprocess.run(["make", "help"], cwd=PROJECT, capture_output=True, text=True, check=True)
    apps = flake.read("apps.x86_64-linux", "--apply", "builtins.attrNames", *STAND_IN)
    assert apps == sorted(line.split()[1] for line in targets.stdout.splitlines())
    outside = flake.nix("run", "path:.#help", *STAND_IN)
    assert outside.returncode == 2
    assert "run this in the project's folder" in outside.stderr
    shutil.copy(PROJECT / "pyproject.toml", flake.folder)
    inside = flake.nix("run", "path:.#help", *STAND_IN)
    assert inside.stdout == targets.stdout


def test_without_nix_the_check_says_what_to_install(tmp_path):
    (tmp_path / "dirname").symlink_to(str(shutil.which("dirname")))
    bash = str(shutil.which("bash"))
    environment = dict(os.environ, PATH=str(tmp_path))
    done = subprocess.run(
        [bash, str(PROJECT / "nix" / "check.sh")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "apt-get install nix-bin" in done.stderr
