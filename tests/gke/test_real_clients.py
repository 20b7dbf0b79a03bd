"""Every call that `recipe gke` makes is one that the real gcloud and kubectl know, flag by flag; neither is let on."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from test_gke_commands import COMMANDS

from recipe.gke.cluster import HERE

GCLOUD, KUBECTL = shutil.which("gcloud"), shutil.which("kubectl")
needs_gcloud = pytest.mark.skipif(GCLOUD is None, reason="gcloud is not installed")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")


@pytest.fixture(scope="module")
def commands(one_machine) -> list[list[str]]:
    """Every call that is printed by the dry runs, with every option on, and those that --update makes."""
    lines = []
    for words in COMMANDS.values():
        told = one_machine.recipe(*words, "--dry-run")
        lines += [re.sub(r"^[A-Z_]+=\$\((.*)\)$", r"\1", line) for line in told.stdout.splitlines()]
    one_machine.there(boxes={"releaseChannel": {}}, sandboxes={"config": {}})
    assert one_machine.recipe("create", "--update", "GKE_AUTHORIZED_NETWORKS=192.0.2.7/32").exit_code == 0
    calls = [shlex.split(line, comments=True) for line in lines] + one_machine.called(" update ")
    calls = [call[2:] if call[:1] == ["env"] else call for call in calls]
    found = [call for call in calls if call[:1] in (["gcloud"], ["kubectl"])]
    assert len(found) > 100
    return found


def help_of(*command: str | None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


def flags_of(call: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in call if word.startswith("--")}


def unknown(call: list[str], tree: dict) -> str:
    """What of a call of gcloud its table of commands and flags does not have; empty: nothing."""
    node, flags, rest = tree, set(tree["flags"]), call[1:]
    while rest and rest[0] in node.get("commands", {}):
        node = node["commands"][rest[0]]
        flags |= set(node["flags"])
        rest = rest[1:]
    if node.get("commands"):
        return f"{' '.join(call[:4])}: no such command"
    # The table has a flag that can be turned off under one of its two names.
    known = flags | {flag.replace("--", "--no-", 1) for flag in flags}
    return " ".join(sorted(flags_of(call) - known))


@pytest.fixture(scope="module")
def tree() -> dict:
    root = Path(help_of(GCLOUD, "info", "--format=value(installation.sdk_root)").strip())
    table = root / "data" / "cli" / "gcloud_completions.py"
    if not table.is_file():
        pytest.skip("this gcloud has no table of its flags")
    return runpy.run_path(str(table))["STATIC_COMPLETION_CLI_TREE"]


@needs_gcloud
def test_gcloud_has_every_command_and_flag(tree, commands) -> None:
    calls = [call for call in commands if call[0] == "gcloud"]
    assert [fault for call in calls if (fault := unknown(call, tree))] == []


@needs_gcloud
def test_a_command_or_flag_that_gcloud_lacks_is_found(tree) -> None:
    assert unknown(["gcloud", "container", "clusters", "create", "c", "--enable-dataplane-v3"], tree)
    assert unknown(["gcloud", "container", "clusters", "shrink", "c"], tree)
    assert not unknown(["gcloud", "container", "clusters", "create", "c", "--enable-dataplane-v2"], tree)


@needs_gcloud
def test_the_help_of_the_two_largest_commands_has_their_flags_too(commands) -> None:
    for kind in ("clusters", "node-pools"):
        text = help_of(GCLOUD, "container", kind, "create", "--help")
        mine = set().union(
            *(flags_of(call) for call in commands if call[1:4] == ["container", kind, "create"])
        )
        assert [flag for flag in mine if not re.search(rf"{re.escape(flag)}\b", text)] == []
        if kind == "node-pools":
            config = yaml.safe_load((HERE / "node_config.yaml").read_text())["kubeletConfig"]
            assert [key for key in config if not re.search(rf"\b{key}\b", text)] == []


@needs_kubectl
def test_kubectl_has_every_command_and_flag(commands) -> None:
    everywhere = help_of(KUBECTL, "options")
    calls = [call for call in commands if call[0] == "kubectl"]
    verbs = {next(word for word in call[1:] if not word.startswith("--")) for call in calls}
    texts = {verb: everywhere + help_of(KUBECTL, verb, "--help") for verb in verbs}
    assert verbs == {"apply", "create", "delete", "get"}
    for call in calls:
        text = texts[next(word for word in call[1:] if not word.startswith("--"))]
        assert [flag for flag in flags_of(call) if f"{flag}=" not in text] == []
