"""`recipe container`: prints what a shell can read back, and runs nothing unless it is told to."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from recipe.container import image, node
from recipe.container.commands import app
from recipe.errors import BadInputError
from recipe.pins import PROJECT_ROOT, load_pins

PINS = load_pins()
README = (PROJECT_ROOT / "README.md").read_text()
HEAD = ["--head-ip", "10.0.0.1"]
COMMANDS = {
    "build": ["build", "--recipe", "terminus2"],
    "start": ["start", "--recipe", "camel", "--model-root", "/srv/it's", "--infiniband", "--docker-socket"],
    "check": ["check", "--recipe", "camel"],
    "head": ["ray", "--recipe", "camel", *HEAD],
    "worker": ["ray", "--recipe", "camel", *HEAD, "--node-ip", "10.0.0.2"],
    "slurm": ["slurm", "--recipe", "camel"],
    "kuberay": ["kuberay", "--recipe", "camel", "--repository", "registry.example/inkling"],
}


def recipe(*words: str, path: str = "/usr/bin:/bin", cwd=None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path, "PYTHONPATH": str(PROJECT_ROOT)}
    command = [sys.executable, "-m", "recipe", "container", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture
def stand_ins(tmp_path):
    """A PATH whose docker, sbatch and kubectl only write down their arguments and their input."""
    for name in ("docker", "sbatch", "kubectl"):
        program = tmp_path / name
        program.write_text(
            f"#!{sys.executable}\nimport pathlib, sys\n"
            f'pathlib.Path({str(tmp_path)!r}, "{name}.called").write_text(repr(sys.argv[1:]))\n'
            f"{'print(len(sys.stdin.read()))' if name != 'docker' else ''}\nsys.exit(5)\n"
        )
        program.chmod(0o755)
    return tmp_path


def printed(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_nothing_is_run_unless_asked_for(stand_ins, words, monkeypatch):
    monkeypatch.setenv("PATH", str(stand_ins), prepend=os.pathsep)
    assert printed(*words) == printed(*words, "--print") != ""
    assert not list(stand_ins.glob("*.called"))


def test_what_is_printed_is_read_back_by_a_shell_as_the_same_words():
    assert shlex.split(printed(*COMMANDS["build"])) == image.build_command(PINS, "terminus2")
    head = shlex.split(printed(*COMMANDS["head"]))
    assert head == node.in_container("camel", node.ray_head_command("10.0.0.1"))
    worker = shlex.split(printed(*COMMANDS["worker"]))
    assert worker == node.in_container("camel", node.ray_worker_command("10.0.0.1", "10.0.0.2"))
    started = shlex.split(printed(*COMMANDS["start"]))
    assert "/srv/it's:/root/models" in started
    assert image.name(PINS, "camel") in started


def test_a_manifest_is_one_yaml_document():
    content = yaml.safe_load(printed(*COMMANDS["kuberay"]))
    assert content["kind"] == "RayCluster"


@pytest.mark.parametrize(
    ("words", "program"), [("start", "docker"), ("slurm", "sbatch"), ("kuberay", "kubectl")]
)
def test_run_hands_over_the_very_text_and_ends_as_the_program_ends(stand_ins, words, program):
    text = printed(*COMMANDS[words])
    done = recipe(*COMMANDS[words], "--run", path=f"{stand_ins}:{os.environ['PATH']}")
    assert done.returncode == 5
    called = (stand_ins / f"{program}.called").read_text()
    if program == "docker":
        assert called == repr(shlex.split(text)[1:])
    else:
        assert int(done.stdout) == len(text)


def test_a_missing_program_is_said_without_a_traceback():
    done = recipe(*COMMANDS["slurm"], "--run", path="/nonexistent")
    assert done.returncode == 2
    assert "sbatch can't be run" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "option", "values"),
    [
        (
            "build",
            "repository",
            ["", "a b", "Upper/x", "host.example/x:tag", "x@sha256:0", "/x", "x/", "a//b", "x\n"],
        ),
        ("start", "repository", [""]),
        ("start", "data-dir", ["relative", "", "/a:b", "/a,b", "/a\nb", "/a\udcff"]),
        ("start", "project", [""]),
        (
            "head",
            "head-ip",
            ["node-1", "", "0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.0.0.256"],
        ),
        ("worker", "node-ip", ["node-2", "", "127.0.0.1"]),
        ("head", "dashboard-port", ["0", "-1", "65536", "6379"]),
        ("head", "dashboard-host", ["", "localhost", "::", "224.0.0.1"]),
        ("slurm", "num-nodes", ["4", "9"]),
        ("slurm", "command", ["", "&& ||", ";", "make 'x"]),
        ("slurm", "image", ["", "/", "a b.sqsh"]),
        ("slurm", "time", ["", "tomorrow", "1-", "1:2:3:4", "1d", "\u0661"]),
        ("slurm", "partition", ["", "a b", "a,", ",", "a\n#SBATCH --nodes=1"]),
        ("slurm", "account", ["", "a,b"]),
        ("kuberay", "repository", ["", "a b"]),
        ("kuberay", "claim", ["", "Upper", "a_b", "-a", "a" * 254]),
        ("kuberay", "rdma-resource", ["", "hca", "nvidia.com/gpu", "kubernetes.io/x", "rdma/", "rdma/a b"]),
    ],
)
def test_a_value_that_can_not_work_is_refused(words, option, values):
    for value in values:
        done = CliRunner().invoke(app, [*COMMANDS[words], f"--{option}", value])
        assert isinstance(done.exception, BadInputError), (value, done.output)


@pytest.mark.parametrize(
    ("words", "option", "values"),
    [
        ("build", "repository", ["inkling", "localhost:5000/a", "Host.example/a/b__c", "a/b-c"]),
        ("head", "dashboard-host", ["127.0.0.1", "0.0.0.0"]),
        ("slurm", "time", ["90", "90:00", "1:00:00", "1-0", "2-00:00:00"]),
        ("slurm", "partition", ["a,b"]),
        ("kuberay", "rdma-resource", ["rdma/hca", "nvidia.com/hostdev", "nvidia.com/gpu.shared"]),
    ],
)
def test_a_value_that_works_is_taken(words, option, values):
    for value in values:
        assert value in printed(*COMMANDS[words], f"--{option}", value)


def test_a_recipe_that_is_none_is_refused():
    assert CliRunner().invoke(app, ["build", "--recipe", "other"]).exit_code == 2


def test_every_command_of_the_readme_prints_something():
    lines = re.findall(r"^    recipe container (.*?)(?: +#.*)?$", README, re.MULTILINE)
    assert {line.split()[0] for line in lines} == {words[0] for words in COMMANDS.values()}
    for line in lines:
        assert printed(*shlex.split(line))
    assert node.PROJECT_DIR in README
    assert node.container_name("camel") in README
