"""The job of Miles: its whole command line, what decides each flag, and what EXTRA_ARGS may not do."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.engines.miles.extra_args import REFUSED
from recipe.engines.miles.flags import flags
from recipe.engines.miles.job import TRAIN, job
from recipe.errors import BadInputError
from recipe.resolve import load

GOLDEN = Path(__file__).parent / "golden" / "camel-8-nodes.txt"
GIVEN = {
    "HEAD_IP": "10.0.0.1",
    "TASKS_DIR": "/data/tasks",
    "RUNS_ROOT": "/data/runs",
    "RUN_NAME": "golden",
    "PROMPT_DATA": "/data/prompts.jsonl",
}
WANDB = {
    "--use-wandb",
    "--wandb-project seta",
    "--wandb-group golden",
    "--disable-wandb-random-suffix",
    "--wandb-dir /data/runs/golden",
}
PARSERS = {"--sglang-tool-call-parser inkling", "--sglang-reasoning-parser inkling"}


@pytest.fixture(autouse=True)
def _no_env_file(empty_folder):
    return empty_folder


def settings_of(command="train-camel", **values):
    return load(command, [f"{name}={value}" for name, value in (GIVEN | values).items()])


def command_line(command="train-camel", **values):
    settings = settings_of(command, **values)
    return [" ".join(flag.words) for flag in flags(settings, settings.run_dir)]


def test_the_camel_job_on_eight_nodes_is_the_golden_one():
    assert command_line() == GOLDEN.read_text().splitlines()


@pytest.mark.parametrize("nodes", [6, 7, 8])
@pytest.mark.parametrize("command", ["train-camel", "train-terminus2"])
def test_the_other_jobs_differ_by_parsers_stages_and_save_interval(command, nodes):
    found, golden = set(command_line(command, NUM_NODES=nodes)), set(GOLDEN.read_text().splitlines())
    more, less = set(), set()
    if command == "train-terminus2":
        more |= {"--save-interval 50", *PARSERS}
        less |= {"--save-interval 99"}
    if nodes != 8:
        more |= {f"--pipeline-model-parallel-size {nodes}", f"--actor-num-nodes {nodes}"}
        less |= {"--pipeline-model-parallel-size 8", "--actor-num-nodes 8"}
        # 42 layers in 6 or 7 equal stages.
        less |= {"--decoder-last-pipeline-num-layers 7"}
    assert (found - golden, golden - found) == (more, less)


def test_no_flag_is_given_twice():
    names = [line.split()[0] for line in command_line("train-terminus2")]
    assert len(names) == len(set(names))


def test_every_value_tells_where_it_comes_from():
    settings = settings_of(LR="2e-5")
    sources = {flag.name: flag.source for flag in flags(settings, settings.run_dir)}
    assert sources["--lr"] == "LR (argument)"
    assert sources["--num-rollout"] == "NUM_ROLLOUT (default)"
    assert sources["--use-tis"] == "recipe"


def test_without_dumped_details_there_is_no_dashboard():
    gone = set(GOLDEN.read_text().splitlines()) - set(command_line(DUMP_DETAILS="0"))
    assert gone == {"--use-miles-dashboard", "--dump-details /data/runs/golden/dump_details"}
    with pytest.raises(BadInputError, match="dashboard reads the dumped details"):
        command_line(DUMP_DETAILS="0", EXTRA_ARGS="--use-miles-dashboard")


def test_wandb_is_on_with_its_key_which_is_nowhere(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "planted-secret")
    settings = settings_of(WANDB_ENTITY="team")
    made = job(settings, settings.run_dir, "http://10.0.0.1:11000")
    more = set(command_line(WANDB_ENTITY="team")) - set(GOLDEN.read_text().splitlines())
    assert more == {
        *WANDB,
        "--wandb-mode online",
        "--wandb-team team",
    }
    assert made.env["NETRC"] == "/data/runs/golden/launcher/netrc"
    assert made.env["WANDB_ERROR_REPORTING"] == "false"
    assert "planted" not in repr(made)


def test_wandb_offline_needs_no_key():
    more = set(command_line(WANDB_MODE="offline")) - set(GOLDEN.read_text().splitlines())
    assert more == {*WANDB, "--wandb-mode offline"}
    settings = settings_of(WANDB_MODE="offline")
    assert "NETRC" not in job(settings, settings.run_dir, "http://10.0.0.1:11000").env


def test_tensorboards_files_are_in_the_run_folder():
    assert set(command_line(TENSORBOARD="1")) - set(GOLDEN.read_text().splitlines()) == {"--use-tensorboard"}
    settings = settings_of(TENSORBOARD="1")
    made = job(settings, settings.run_dir, "http://10.0.0.1:11000")
    assert made.env["TENSORBOARD_DIR"] == "/data/runs/golden/tensorboard"


def test_the_entry_point_runs_train_py_with_the_models_flags_first_and_ours_word_for_word(tmp_path):
    miles = tmp_path / "a checkout"
    (miles / "scripts" / "models").mkdir(parents=True)
    (miles / "scripts" / "models" / "inkling-small.sh").write_text("MODEL_ARGS=(--num-layers 42)\n")
    (miles / "train.py").write_text("import json, os, sys\nprint(json.dumps([os.getcwd(), *sys.argv]))\n")
    settings = settings_of(
        MILES_DIR=miles, RUNS_ROOT=tmp_path / "x y", EXTRA_ARGS="--note 'a $HOME `b` \"c\"'"
    )
    made = job(settings, settings.run_dir, "http://10.0.0.1:11000")
    done = subprocess.run(["sh", "-c", made.entrypoint], capture_output=True, text=True, check=True)
    folder, *words = json.loads(done.stdout)
    ours = [word for flag in flags(settings, settings.run_dir) for word in flag.words]
    assert folder == str(miles)
    assert words == ["train.py", "--num-layers", "42", *ours]
    assert words[-2:] == ["--note", 'a $HOME `b` "c"']


def test_the_script_of_the_entry_point_is_constant():
    settings = settings_of(EXTRA_ARGS="--note '; echo harm'")
    made = job(settings, settings.run_dir, "http://10.0.0.1:11000")
    assert shlex.split(made.entrypoint)[:3] == ["bash", "-c", TRAIN]


def test_extra_args_come_last_and_replace_ours():
    lines = command_line(EXTRA_ARGS="--rollout-temperature=0.9 --custom -1 'a b'")
    assert lines[-2:] == ["--rollout-temperature 0.9", "--custom -1 a b"]
    assert "--rollout-temperature 1" not in lines


@pytest.mark.parametrize(
    ("text", "told"),
    [
        *((f"{name} planted", reason) for name, reason in REFUSED.items()),
        ("--eval-interval planted", "nothing is evaluated"),
        ("--lr planted", "LR set instead"),
        ("--wandb-k planted", "a command line is read by others"),
        ("--sglang-api-key planted", "a command line is read by others"),
        ("--micro_batch_size planted", "hyphens"),
        ("--session-server-port planted", "SESSION_SERVER_PORT set instead"),
        ("--pipeline-model-parallel-size planted", "NUM_NODES set instead"),
        ("--save planted", "RUN_NAME set instead"),
        ("--zeta planted --zeta planted", "--zeta twice"),
        ("planted --zeta", "a value before the first flag"),
        ("-x planted", "word 1"),
        ("--zeta 'planted", "quot"),
        ("--zeta planted --B", "word 3"),
    ],
)
def test_extra_args_that_contradict_are_refused_without_their_values(text, told):
    with pytest.raises(BadInputError) as refused:
        command_line(EXTRA_ARGS=text)
    assert told in str(refused.value)
    assert "planted" not in str(refused.value)


def test_the_agents_variables_follow_the_recipe():
    camel, terminus = (
        job(s := settings_of(command), s.run_dir, "http://a:1").env
        for command in ("train-camel", "train-terminus2")
    )
    assert (camel["HARBOR_AGENT_NAME"], terminus["HARBOR_AGENT_NAME"]) == ("camel", "terminus-2")
    assert "HARBOR_INTERLEAVED_THINKING" not in camel
    assert terminus["HARBOR_INTERLEAVED_THINKING"] == "true"
    assert camel["no_proxy"] == "127.0.0.1,10.0.0.1"
    named = job(s := settings_of(NCCL_SOCKET_IFNAME="ib0"), s.run_dir, "http://a:1").env
    assert named["NCCL_SOCKET_IFNAME"] == "ib0"
    assert "GLOO_SOCKET_IFNAME" not in named


def dry_run(*words, **options):
    command = [sys.executable, "-m", "recipe", "train-camel", "--dry-run"]
    given = [
        f"{name}={value}" for name, value in (GIVEN | {"TASKS_DIR": "tasks"}).items() if name != "PROMPT_DATA"
    ]
    return subprocess.run([*command, *given, *words], capture_output=True, text=True, **options)


@pytest.fixture
def tasks(empty_folder):
    """A folder with one task, in the working directory."""
    task = empty_folder / "tasks" / "one"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text("[agent]\ntimeout_sec = 600\n")
    (task / "instruction.md").write_text("Do it.")
    return empty_folder


def test_a_dry_run_on_a_laptop_prints_the_whole_job_and_why_it_would_not_start_here(tasks, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "planted-secret")
    done = dry_run()
    assert (done.returncode, done.stderr) == (0, "")
    golden = GOLDEN.read_text().replace("/data/prompts.jsonl", "/data/runs/golden/launcher/prompts.jsonl")
    for line in golden.splitlines():
        assert any(
            shown.split("  ")[1] == line for shown in done.stdout.splitlines() if shown.startswith("  --")
        ), line
    assert "  CUDA_DEVICE_MAX_CONNECTIONS=1\n" in done.stdout
    assert "\non this machine a start would be refused:\n- " in done.stdout
    assert "\n- MODEL_DIR holds no model" in done.stdout
    assert "planted" not in done.stdout
    assert [path.name for path in tasks.iterdir()] == ["tasks"]


def test_a_dry_run_as_json_holds_the_same(tasks):
    plan = json.loads(dry_run("--json").stdout)
    words = [one["words"] for one in plan["job"]["arguments"]]
    assert "--rollout-shuffle" in words
    assert plan["settings"]["lr"] == {"value": 1e-05, "source": "default"}
    assert plan["job"]["environment"]["MASTER_ADDR"] == "10.0.0.1"
    assert any("MILES_DIR" in refusal for refusal in plan["refusals"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["NUM_NODES=5"], "do not go together"),
        (["EXTRA_ARGS=--apply-chat-template"], "EXTRA_ARGS can't be taken"),
        (["TASKS_DIR=none"], "the folder of TASKS_DIR is missing"),
        (["HARBOR_AGENT_CALL_TIMEOUT_SEC=7200"], "may work longer than their trials"),
    ],
)
def test_a_dry_run_of_bad_input_is_refused(tasks, words, told):
    done = dry_run(*words)
    assert done.returncode == 2
    assert told in done.stderr
