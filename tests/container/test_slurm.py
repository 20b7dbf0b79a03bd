"""The batch script: clean shell, directives that Slurm knows, and run for real with stand-ins for its programs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.container import image, node, slurm
from recipe.pins import load_pins

PINS = load_pins()
JOB = {
    "file": Path("/srv/image.sqsh"),
    "mounts": node.mounts(Path("/srv/models"), Path("/srv/it's data"), Path("/srv/project")),
    "command": "make train-camel RUN_NAME='a b'",
    "num_nodes": 8,
    "time": "2-00:00:00",
    "partition": "h200",
    "account": "lab",
}
# Options of sbatch(1), of those that this script or its options can come to, and the form of their values.
SBATCH = {
    "account": r"\S+",
    "exclusive": None,
    "gpus-per-node": r"(\w+:)?\d+",
    "job-name": r"\S+",
    "mem": r"\d+[KMGT]?",
    "no-requeue": None,
    "nodes": r"\d+(-\d+)?",
    "ntasks-per-node": r"\d+",
    "output": r"\S+",
    "partition": r"[\w,-]+",
    "propagate": r"ALL|NONE|[A-Z,]+",
    "time": r"(\d+-)?\d+(:\d+){0,2}",
}
# Options of srun(1), and those that pyxis adds.
SRUN = {"cpu-bind", "exclude", "kill-on-bad-exit", "nodelist", "nodes", "ntasks", "ntasks-per-node"}
PYXIS = {"image", "mounts", "workdir", "remap-root", "mount-home", "writable"}
RECIPES = pytest.mark.parametrize("recipe", sorted(PINS.recipes))


@RECIPES
def test_every_directive_is_an_option_of_sbatch_with_a_value_of_its_form(recipe):
    lines = slurm.script(PINS, recipe, **JOB).splitlines()
    directives = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert len(directives) == len(SBATCH)
    for directive in directives:
        name, equals, value = directive.removeprefix("--").partition("=")
        form = SBATCH[name]
        assert bool(equals) == (form is not None), directive
        assert form is None or re.fullmatch(form, value), directive
    first_command = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    last_directive = max(index for index, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert last_directive < first_command, "sbatch reads no directive after the first command"


@RECIPES
def test_shellcheck_has_nothing_to_say(recipe, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(slurm.script(PINS, recipe, **JOB))
    files = [str(script), str(image.CONTEXT / "checkout.sh")]
    done = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_no_placeholder_is_left_and_the_pins_are_checked_on_every_node():
    script = slurm.script(PINS, "camel", **JOB)
    assert not re.search(r"@[A-Za-z_]+@", script)
    assert script.count(shlex.join(image.check_command(PINS, "camel"))) == 2
    assert "wait_for_gpus.py 64 " in script
    assert "wait_for_gpus.py 48 " in slurm.script(PINS, "camel", **JOB | {"num_nodes": 6})


def test_the_command_reaches_the_shell_word_by_word():
    command = "make 'a b' '$HOME' @HEAD_IP@ @check@ ';' true"
    lines = slurm.script(PINS, "camel", **JOB | {"command": command}).splitlines()
    (line,) = [line for line in lines if line.startswith("  make ")]
    assert shlex.split(line) == shlex.split(command)
    assert "'$HOME' @HEAD_IP@ @check@ ';'" in line


# Each stand-in tells how it was called. srun runs its command here, as one task, and ends all of it when told to.
STAND_INS = {
    "scontrol": "printf 'node%s\\n' 0 1 2 3 4 5 6 7",
    "getent": "echo '10.0.0.1 STREAM node0'",
    "python3": "echo 127.0.0.1",
    "srun": """
while [[ $1 == --* ]]; do shift; done
set -m
"$@" &
trap 'kill -- -$!' TERM
wait $! || status=$?
wait $!
exit "${status:-0}"
""",
    "ray": "[[ $* == *--head* ]] || { if [[ -e $FOLDER/worker-dies ]]; then exit 3; fi; exec sleep 60; }",
    "make": 'if [[ -e $FOLDER/hangs ]]; then exec sleep 60; fi; exit "$(cat "$FOLDER/status")"',
}


@pytest.fixture
def cluster(tmp_path):
    """Runs the script in a folder of stand-ins; gives the finished process and what was called."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, body in STAND_INS.items():
        program = programs / name
        program.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "{name} $*" >>"$FOLDER/calls"\n{body}\n')
        program.chmod(0o755)
    (tmp_path / "status").write_text("0")
    script = tmp_path / "job.sh"
    text = slurm.script(PINS, "camel", **JOB)
    assert text.count("  sleep 2\n") == 1
    script.write_text(text.replace("  sleep 2\n", "  sleep 0.05\n"))
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "FOLDER": str(tmp_path),
        "SLURM_JOB_NODELIST": "node[0-7]",
    }

    def run(**variables: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        done = subprocess.run(
            ["bash", str(script)],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done, (tmp_path / "calls").read_text().splitlines()

    run.folder = tmp_path
    return run


def test_the_job_starts_head_and_workers_runs_the_command_and_ends(cluster):
    done, calls = cluster()
    assert done.returncode == 0, done.stderr
    check, wait = "python3 /opt/inkling-grpo/check.py", "python3 /opt/inkling-grpo/wait_for_gpus.py 64"
    (head,) = [call for call in calls if call.startswith("ray start --head")]
    assert "--node-ip-address 10.0.0.1" in head
    (command,) = [call for call in calls if call.startswith("make")]
    assert command == "make train-camel RUN_NAME=a b"
    (wait_call,) = [call for call in calls if call.startswith(wait)]
    assert next(i for i, call in enumerate(calls) if call.startswith(check)) < calls.index(head)
    assert calls.index(head) < calls.index(wait_call) < calls.index(command)


def test_every_option_of_a_step_is_one_of_srun_or_pyxis(cluster):
    _, calls = cluster()
    steps = [
        call.partition(" bash -c ")[0].partition(" getent ")[0] for call in calls if call.startswith("srun")
    ]
    assert len(steps) == 3
    options = {option for step in steps for option in re.findall(r" --([a-z-]+)", step)}
    added = {re.sub(r"^(no-)?container-", "", option) for option in options if "container-" in option}
    assert added == PYXIS
    assert {option for option in options if "container-" not in option} == SRUN


def test_a_step_mounts_the_folders_and_knows_its_nodes(cluster):
    _, calls = cluster()
    head, workers = sorted(
        (call for call in calls if call.startswith("srun") and "bash -c" in call),
        key=lambda call: "--exclude" in call,
    )
    assert "--nodes=1 --ntasks=1 --nodelist=node0" in head
    assert "--nodes=7 --ntasks=7 --exclude=node0" in workers
    assert "--container-mounts=/srv/models:/root/models,/srv/it's data:/data," in head


def test_a_given_head_address_goes_first(cluster):
    _, calls = cluster(HEAD_IP="10.9.9.9")
    assert any(call.startswith("ray start --head --node-ip-address 10.9.9.9 ") for call in calls)
    assert not any(call.startswith("getent") for call in calls)


def test_the_job_ends_as_its_command_ends(cluster):
    (cluster.folder / "status").write_text("7")
    done, _ = cluster()
    assert done.returncode == 7


def test_a_worker_that_leaves_ends_the_job(cluster):
    (cluster.folder / "worker-dies").touch()
    (cluster.folder / "hangs").touch()
    done, _ = cluster()
    assert done.returncode == 1
    assert "a worker node left Ray" in done.stderr
