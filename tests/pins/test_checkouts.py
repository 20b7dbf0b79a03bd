"""The checkouts ring, on real git repositories: what fits is ok, each drift is told with all its facts."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from drifting import change, commit, git, only_drift

from recipe import programs
from recipe.drift import checkouts
from recipe.drift.lines import Line
from recipe.errors import BadInputError
from recipe.pins import RELIED_ON, UPSTREAM, load_pins
from recipe.programs import TIMED_OUT, ask
from recipe.resolve import load_checkouts

MISC, MANAGER = "miles/utils/misc.py", "miles/ray/rollout/router_manager.py"
MILES = {
    MISC: "def call_agent_abort_hook(): ...\n",
    MANAGER: "import time\n\nwait_for_server_ready(ip, port, process, timeout=180)\n",
    "miles/rollout/session/linear_trajectory.py": "def _preserve_ordered_content_blocks(): ...\n",
}
RELIED_ON_HERE = {
    "ordered blocks survive a replay",
    "session servers get time to start",
    "surplus trials are cancelled",
}


@pytest.fixture
def miles(tree, tmp_path, empty_folder):
    """A repository with what is relied on here in Miles, pinned as such in the project's copy."""
    relied_on = json.loads((tree / RELIED_ON).read_text())
    relied_on["features"] = [one for one in relied_on["features"] if one["name"] in RELIED_ON_HERE]
    (tree / RELIED_ON).write_text(json.dumps(relied_on, indent=2))
    folder = tmp_path / "miles"
    rev = commit(folder, MILES)
    pinned = load_pins(tree).recipes["terminus2"].sources["miles"].rev
    change(tree / UPSTREAM, pinned, rev)
    return folder


def lines(tree: Path, *arguments: str) -> list[Line]:
    return list(checkouts.check(tree, load_pins(tree), load_checkouts(["AGENT=terminus-2", *arguments])))


def drift_of(tree: Path, miles: Path) -> dict[str, str]:
    return only_drift(iter(lines(tree, f"MILES_DIR={miles}")))


def line_in(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def test_a_checkout_that_fits_is_ok_and_an_absent_one_is_skipped_with_the_reason(tree, miles):
    told = lines(tree, f"MILES_DIR={miles}", "SGLANG_DIR=")
    assert [line.name for line in told if line.status == "ok"] == [
        "checkout miles: commit",
        "checkout miles: clean",
        *sorted(f"miles: {name}" for name in RELIED_ON_HERE),
    ]
    assert {line.status for line in told} == {"ok", "skip"}
    reasons = " ".join(line.facts["reason"] for line in told if line.status == "skip")
    assert "HARBOR_DIR is not set" in reasons
    assert "the default of SGLANG_DIR" in reasons


def test_a_wrong_checkout_is_named_with_both_commits_and_the_command(tree, miles):
    pinned = git(miles, "rev-parse", "HEAD")
    other = commit(miles, {"README": "later"})
    facts = drift_of(tree, miles)
    assert (facts["expected"], facts["found"]) == (pinned, other)
    assert facts["where"] == f"{miles} (pinned in {UPSTREAM}:{line_in(tree / UPSTREAM, pinned)})"
    command = facts["run"].replace(load_pins(tree).recipes["terminus2"].sources["miles"].url, str(miles))
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert not [line for line in lines(tree, f"MILES_DIR={miles}") if line.bad]


def test_a_dirty_checkout_is_named_with_the_file(tree, miles):
    (miles / MISC).write_text(MILES[MISC] + "changed = True\n")
    (miles / "build").mkdir()
    (miles / "build" / "untracked").write_text("does not count")
    facts = drift_of(tree, miles)
    assert (facts["expected"], facts["found"]) == ("no local change", f"{MISC} is changed")
    assert facts["where"] == str(miles / MISC)
    subprocess.run(facts["run"], shell=True, check=True, capture_output=True)
    assert not [line for line in lines(tree, f"MILES_DIR={miles}") if line.bad]


@pytest.mark.parametrize(
    ("file", "text", "expected", "found", "at"),
    [
        (MISC, "def other(): ...\n", "text call_agent_abort_hook", "no match", ""),
        (
            MANAGER,
            "\nwait_for_server_ready(ip, port, process, timeout=30)\n",
            "no text wait_for",
            "the text",
            ":2",
        ),
        (MISC, None, "text call_agent_abort_hook", "no such file", ""),
    ],
)
def test_a_missing_feature_is_named_with_its_file_and_why(tree, miles, file, text, expected, found, at):
    before = git(miles, "rev-parse", "HEAD")
    if text is None:
        (miles / file).unlink()
    after = commit(miles, {file: text} if text else {})
    change(tree / UPSTREAM, before, after)
    facts = drift_of(tree, miles)
    feature = next(one for one in load_pins(tree).features_of("terminus2", "miles") if one.file == file)
    assert facts["expected"].startswith(expected)
    assert feature.why in facts["expected"]
    assert facts["found"].startswith(found)
    relied_on = line_in(tree / RELIED_ON, feature.name)
    assert facts["where"] == f"{miles / file}{at} (relied on in {RELIED_ON}:{relied_on})"
    assert facts["run"] == f"git -C {miles} checkout {after}"


def test_a_folder_that_was_named_but_is_not_there_is_no_skip(tree, miles):
    facts = drift_of(tree, miles / "nothing")
    assert facts["found"] == "nothing"
    assert "MILES_DIR, argument" in facts["where"]


def test_a_folder_inside_another_repository_is_no_checkout(tree, miles):
    (miles / "copy").mkdir()
    facts = [line.facts for line in lines(tree, f"MILES_DIR={miles / 'copy'}") if line.bad]
    assert facts[0]["found"] == "no git checkout"
    assert "git clone" in facts[0]["run"]


def test_a_git_hook_around_us_does_not_turn_the_question_to_its_repository(tree, miles, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tree / ".git"))
    assert not [line for line in lines(tree, f"MILES_DIR={miles}") if line.bad]


def test_camel_is_looked_up_in_harbors_lock(tree, tmp_path, empty_folder):
    pinned = load_pins(tree).recipes["camel"].sources["camel"]
    harbor = tmp_path / "harbor"
    harbor.mkdir()
    chosen = load_checkouts([f"HARBOR_DIR={harbor}"])
    told = {}
    for rev in (pinned.rev, "0" * 40):
        (harbor / "uv.lock").write_text(f'version = 1\nsource = {{ git = "{pinned.url}#{rev}" }}\n')
        told[rev] = {line.name: line for line in checkouts.check(tree, load_pins(tree), chosen)}
    name = "camel: commit, in Harbor's uv.lock"
    assert told[pinned.rev][name].status == "ok"
    facts = told["0" * 40][name].facts
    assert facts["expected"] == pinned.rev
    assert "0" * 40 in facts["found"]
    assert facts["where"].startswith(f"{harbor}/uv.lock:2 (pinned in {UPSTREAM}:")
    assert "make pins-bump RECIPE=camel SOURCE=camel" in facts["run"]


@pytest.fixture
def other_python(tmp_path, monkeypatch):
    """The folder of packages of a Python that is on PATH and is not ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "python"], check=True)
    monkeypatch.setenv("PATH", f"{tmp_path / 'python' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return next((tmp_path / "python" / "lib").glob("python*/site-packages"))


def sglang_line(tree: Path, folder: Path) -> Line:
    return next(line for line in lines(tree, f"SGLANG_DIR={folder}") if "imported" in line.name)


def test_sglang_is_found_where_the_training_python_would_import_it_without_doing_so(
    tree, tmp_path, other_python, empty_folder
):
    for name in ("sglang", "elsewhere"):
        package = tmp_path / name / "python" / "sglang"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    wanted, elsewhere = tmp_path / "sglang", tmp_path / "elsewhere"
    assert sglang_line(tree, wanted).status == "skip"
    (other_python / "sglang.pth").write_text(f"{wanted}/python\n")
    assert sglang_line(tree, wanted).status == "ok"
    (other_python / "sglang.pth").write_text(f"{elsewhere}/python\n")
    facts = sglang_line(tree, wanted).facts
    assert facts["expected"] == str(wanted / "python" / "sglang")
    assert facts["found"] == str(elsewhere / "python" / "sglang")
    assert facts["where"] == str(tmp_path / "python" / "bin" / "python3")
    assert "pip install" in facts["run"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho junk; exit 0", "exit code 0, junk"),
        ("#!/bin/sh\necho no >&2; exit 1", "exit code 1, no"),
        ("#!/bin/sh\nprintf '\\377'", "exit code 0"),
        ("#!/bin/sh\nsleep 60 & sleep 60", "did not answer in 0.5 s"),
        ("no program", "python3: Exec format error"),
    ],
)
def test_an_odd_python_on_path_is_a_skip_with_its_reason(
    tree, tmp_path, empty_folder, monkeypatch, script, reason
):
    program = tmp_path / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(checkouts, "PYTHON_SECONDS", 0.5)
    (tmp_path / "sglang").mkdir()
    line = sglang_line(tree, tmp_path / "sglang")
    assert line.status == "skip"
    assert reason in line.facts["reason"]


def test_a_program_that_is_late_ends_with_all_that_it_started(tmp_path):
    # The pipe has an end of file once nobody holds it any more.
    os.mkfifo(tmp_path / "held")
    script = f"sleep 60 >{tmp_path}/held & wait"
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    done = ask(["sh", "-c", script], folder=tmp_path, seconds=0.5)
    os.set_blocking(reader, True)
    assert done.returncode == TIMED_OUT
    assert select.select([reader], [], [], 10)[0], "the sleep holds the pipe"
    os.close(reader)


def test_a_program_is_not_waited_for_once_only_its_daemon_holds_the_output(tmp_path):
    (tmp_path / "daemon").write_text("echo $$ >pid; exec sleep 60")
    script = "setsid sh ./daemon & until [ -s pid ]; do sleep 0.01; done; echo done; echo told >&2"
    done = ask(["sh", "-c", script], folder=tmp_path, seconds=20)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # so it still ran
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "told\n")


@pytest.mark.parametrize("end", ["", "; sleep 60"])
def test_a_program_that_writes_without_end_is_ended(tmp_path, monkeypatch, end):
    monkeypatch.setattr(programs, "MOST_BYTES", 2**20)
    done = ask(["sh", "-c", f"head -c 3000000 /dev/zero >&2{end}"], folder=tmp_path, seconds=20)
    assert (done.returncode, done.stderr) == (programs.TOO_MUCH, "sh wrote more than 1 MiB")


def test_output_that_is_no_text_is_kept_as_it_is(tmp_path):
    done = ask(["printf", r"a\377b"], folder=tmp_path)
    assert os.fsencode(done.stdout) == b"a\xffb"


def test_a_program_without_a_place_for_its_output_is_an_outcome(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert ask(["true"], folder=tmp_path).returncode == programs.NOT_STARTED


@pytest.mark.parametrize("file", ["uv.lock", "src/harbor/agents/camel/camel.py"])
def test_a_file_of_a_checkout_that_is_no_text_is_refused_and_named(tree, tmp_path, empty_folder, file):
    harbor = tmp_path / "harbor"
    commit(harbor, {file: "", "src/harbor/agent_server/compat.py": 'sampling.pop("response_feedback"'})
    (harbor / file).write_bytes(b"\xff\xfe")
    with pytest.raises(BadInputError, match="can't be read") as refused:
        list(checkouts.check(tree, load_pins(tree), load_checkouts([f"HARBOR_DIR={harbor}"])))
    assert f"where    {harbor / file}" in str(refused.value)


def test_a_command_that_is_told_survives_a_folder_with_spaces(tree, tmp_path, empty_folder):
    folder = tmp_path / "it's miles"
    folder.mkdir()
    told = [line.facts["run"] for line in lines(tree, f"MILES_DIR={folder}") if line.bad]
    assert all(str(folder) in shlex.split(run) for run in told)


def test_megatron_is_looked_at_but_not_pinned(tree, tmp_path, empty_folder):
    def line() -> Line:
        return next(one for one in lines(tree, f"MEGATRON_PATH={tmp_path / 'm'}") if "megatron" in one.name)

    (tmp_path / "m").mkdir()
    assert line().facts["found"] == "no megatron/core"
    (tmp_path / "m" / "megatron" / "core").mkdir(parents=True)
    assert line().status == "ok"
