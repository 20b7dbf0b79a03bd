"""Settings: where values come from, what is refused, and what is never told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recipe import settings_tables
from recipe.errors import BadInputError
from recipe.given import child_environment
from recipe.presets import PRESETS
from recipe.resolve import load, load_checkouts
from recipe.settings import Settings


@pytest.fixture(autouse=True)
def _no_env_file(empty_folder):
    return empty_folder


CLUSTER = ["HEAD_IP=10.0.0.1", "TASKS_DIR=tasks"]


@pytest.mark.parametrize(("command", "engine"), [(c, engine) for c in PRESETS for engine in PRESETS[c]])
def test_every_preset_resolves_and_reads_back(command, engine):
    settings = load(command, [f"ENGINE={engine}", *(CLUSTER if engine == "miles" else [])])
    assert settings.engine == engine
    assert Settings(**json.loads(json.dumps(settings.public()))).public() == settings.public()


def test_precedence_is_argument_environment_preset_env_file_default(empty_folder, monkeypatch):
    (empty_folder / ".env").write_text("SEED=4\nNUM_ROLLOUT=5\nLR=0.5\nAGENT_MODEL_NAME=from-file\n")
    monkeypatch.setenv("SEED", "3")
    monkeypatch.setenv("NUM_ROLLOUT", "6")
    settings = load("smoke", ["SEED=2"])
    found = {name: (getattr(settings, name), settings.source(name)) for name in ("seed", "num_rollout", "lr")}
    assert found == {
        "seed": (2, "argument"),
        "num_rollout": (6, "environment"),
        "lr": (0.002, "preset smoke"),
    }
    assert settings.agent_model_name == "from-file"
    assert settings.source("agent_model_name") == ".env line 4"
    assert settings.source("dry_run") == "default"


def test_what_is_derived_follows_what_it_derives_from():
    settings = load("smoke", ["N_SAMPLES_PER_PROMPT=4", "HARBOR_AGENT_CALL_TIMEOUT_SEC=7"])
    assert (settings.global_batch_size, settings.rollout_timeout_sec) == (16, 14)


@pytest.mark.parametrize(
    ("command", "word", "told"),
    [
        ("learn", "ENGINE=miles", "ENGINE=local"),
        ("train-camel", "ENGINE=local", "ENGINE=miles"),
        ("train-camel", "AGENT=terminus-2", "`train-camel` is AGENT=camel"),
        ("train-terminus2", "AGENT=camel", "`train-terminus2` is AGENT=terminus-2"),
    ],
)
def test_what_a_command_is_named_after_cannot_be_set_otherwise(command, word, told):
    with pytest.raises(BadInputError) as refused:
        load(command, [*CLUSTER, word])
    assert told in str(refused.value)
    assert "argument" in str(refused.value)


def test_the_agents_defaults_differ_where_the_recipes_do():
    camel, terminus = (load(command, CLUSTER) for command in ("train-camel", "train-terminus2"))
    assert (camel.save_interval, terminus.save_interval) == (99, 50)
    assert camel.load_dir == camel.torch_dist_dir == Path("/root/models/Inkling-Small_torch_dist")
    assert camel.agent_server_url == "http://10.0.0.1:11000"


def test_a_cluster_file_names_head_and_number_of_nodes(empty_folder):
    nodes = [{"ip": f"10.0.0.{number}"} for number in range(2, 8)]
    (empty_folder / "c.yaml").write_text(
        json.dumps({"gpus_per_node": 8, "head": {"ip": "10.0.0.1"}, "workers": nodes})
    )
    settings = load("train-camel", ["TASKS_DIR=t", "CLUSTER_CONFIG=c.yaml"])
    assert (settings.head_ip, settings.num_nodes, settings.gpus_per_node) == ("10.0.0.1", 7, 8)
    assert settings.source("num_nodes") == "CLUSTER_CONFIG c.yaml"
    with pytest.raises(BadInputError, match="CLUSTER_CONFIG and NUM_NODES don't agree"):
        load("train-camel", ["TASKS_DIR=t", "CLUSTER_CONFIG=c.yaml", "NUM_NODES=6"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "head"),
        ("head: {ip: a}\nworker: []", "worker"),
        ("head: {ip: a}\nworkers: [{ip: a}]", "twice"),
        ("head: {ip: [", "flow"),
        ("head: {ip: a}\ngpus_per_node: 0", "gpus_per_node"),
    ],
)
def test_a_bad_cluster_file_is_refused_and_named(empty_folder, text, told):
    (empty_folder / "c.yaml").write_text(text)
    with pytest.raises(BadInputError) as refused:
        load("train-camel", ["TASKS_DIR=t", "CLUSTER_CONFIG=c.yaml"])
    assert told in str(refused.value)
    assert "c.yaml" in str(refused.value)


@pytest.mark.parametrize("source", ["argument", "environment", ".env"])
@pytest.mark.parametrize("name", ["HARBOR_TERMINUS_PARSER", "HARBOR_AGENT_TIMEOUT_SEC"])
def test_what_the_pinned_harbor_would_ignore_must_be_unset(empty_folder, monkeypatch, source, name):
    if source == "environment":
        monkeypatch.setenv(name, "x")
    if source == ".env":
        (empty_folder / ".env").write_text(f"{name}=x\n")
    with pytest.raises(BadInputError, match=f"{name} has no effect at the pinned Harbor commits"):
        load("train-camel", [*CLUSTER, *([f"{name}=x"] if source == "argument" else [])])


@pytest.mark.parametrize("by_make", [False, True])
def test_a_secret_is_refused_on_a_command_line_and_not_told(monkeypatch, by_make):
    words = ["WANDB_API_KEY=planted-secret"]
    if by_make:
        monkeypatch.setenv("MAKE_VARIABLES", words.pop())
    with pytest.raises(BadInputError, match="WANDB_API_KEY is a secret") as refused:
        load("train-camel", [*CLUSTER, *words])
    assert "planted" not in str(refused.value)


def test_secrets_are_no_part_of_what_is_shown(monkeypatch):
    monkeypatch.setenv("DAYTONA_API_KEY", "planted-secret")
    settings = load("train-camel", CLUSTER)
    assert settings.daytona_api_key is not None
    assert settings.daytona_api_key.get_secret_value() == "planted-secret"
    assert "planted" not in repr(settings) + str(settings.public()) + settings_tables.resolved(settings)


def test_the_checkouts_need_nothing_that_a_run_requires(empty_folder, monkeypatch):
    (empty_folder / ".env").write_text("NUM_ROLLOUT=x\nMILES_DIR=/m\nHARBOR_DIR=h\n")
    monkeypatch.setenv("SGLANG_DIR", "/s")
    chosen = load_checkouts(["AGENT=terminus-2"])
    assert (str(chosen.miles_dir), str(chosen.sglang_dir), chosen.recipe) == ("/m", "/s", "terminus2")
    assert chosen.harbor_dir == empty_folder / "h"
    assert chosen.source("miles_dir") == ".env line 2"
    with pytest.raises(BadInputError, match="expected MILES_DIR"):
        load_checkouts(["MILE_DIR=/m"])


@pytest.mark.parametrize("word", ["NUM_ROLOUT=2", "num_rollout=2"])
def test_an_unknown_argument_is_refused_with_the_nearest_name(word):
    with pytest.raises(BadInputError, match=r"expected NUM_ROLLOUT"):
        load("smoke", [word])


def test_an_unknown_name_on_makes_command_line_is_refused(monkeypatch):
    monkeypatch.setenv("MAKE_VARIABLES", "NUM_ROLOUT=2")
    with pytest.raises(BadInputError, match=r"expected NUM_ROLLOUT[^$]*make argument"):
        load("smoke")


def test_values_of_makes_command_line_arrive_as_they_were_written(empty_folder, monkeypatch):
    folder = str(empty_folder / r"a b$\c")
    monkeypatch.setenv("MAKE_VARIABLES", "SEED=9 RUNS_ROOT=" + make_quoted(folder))
    settings = load("smoke", ["SEED=8"])
    assert str(settings.runs_root) == folder
    assert settings.seed == 8


def make_quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ").replace("$", "$$")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("NUM_ROLOUT=2", "expected NUM_ROLLOUT"),
        ("this is no setting", "can't be read"),
        ("SEED", "can't be read"),
        ("SEED=x", "found    'x'"),
    ],
)
def test_a_bad_line_of_the_env_file_is_refused_and_named(empty_folder, line, told):
    (empty_folder / ".env").write_text(f"# a comment\nLR=1e-3\n{line}\n")
    with pytest.raises(BadInputError) as refused:
        load("smoke" if line != "SEED=x" else None, ["ENGINE=local", "SANDBOX_BACKEND=local", "TASKS_DIR=t"])
    assert told in str(refused.value)
    assert ".env line 3" in str(refused.value)


def test_a_named_env_file_must_exist(empty_folder):
    with pytest.raises(BadInputError, match="ENV_FILE"):
        load("smoke", ["ENV_FILE=missing"])
    (empty_folder / "other").write_text("AGENT_MODEL_NAME=other\n")
    assert load("smoke", ["ENV_FILE=other"]).agent_model_name == "other"


@pytest.mark.parametrize(
    "word",
    [
        "NUM_ROLLOUT=0",
        "LR=nan",
        "LR=-1",
        "RUN_NAME=../out",
        "AGENT=none",
        "SEED=1.5",
        "HARBOR_AGENT_TIMEOUT_MULTIPLIER=inf",
        "HARBOR_AGENT_CALL_TIMEOUT_SEC=inf",
        "ROLLOUT_TIMEOUT_SEC=inf",
        "RUNS_ROOT=~nosuchuser/x",
    ],
)
def test_a_bad_value_is_refused_with_name_value_and_source(word):
    name, _, value = word.partition("=")
    with pytest.raises(BadInputError) as refused:
        load("smoke", [word])
    assert all(part in str(refused.value) for part in (name, value, "argument"))


def test_a_bad_run_name_is_told_in_words_and_a_long_one_not_in_full():
    with pytest.raises(BadInputError) as refused:
        load("smoke", ["RUN_NAME=" + "x" * 5000])
    assert "at most 100 letters" in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", ["latin", "~nosuchuser/x"])
def test_a_settings_file_that_cannot_be_read_is_named(empty_folder, name):
    (empty_folder / "latin").write_bytes("AGENT_MODEL_NAME=\xe9\n".encode("latin-1"))
    with pytest.raises(BadInputError, match=f"can't be read[^$]*where +{name}"):
        load("smoke", [f"ENV_FILE={name}"])


def test_bad_values_do_not_drag_in_what_is_derived_from_them():
    with pytest.raises(BadInputError) as refused:
        load("smoke", ["ROLLOUT_BATCH_SIZE=x"])
    assert "GLOBAL_BATCH_SIZE" not in str(refused.value)


def test_an_empty_value_counts_as_not_given(monkeypatch):
    monkeypatch.setenv("LOAD_DIR", "")
    assert load("smoke", ["SEED="]).source("seed") == "preset smoke"
    assert load("smoke").load_dir is None


def test_a_child_gets_what_it_needs_and_nothing_that_we_do_not_know(monkeypatch):
    unwanted = (
        "RAY_ADDRESS",
        "PYTHONPATH",
        "WANDB_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "MAKEFLAGS",
        "NIX_CONFIG",
        "SOME_PRIVATE_VARIABLE",
    )
    for name in unwanted:
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LC_TIME", "y")
    environment = child_environment(RAY_COLOR_PREFIX="0")
    assert not set(unwanted) & set(environment)
    assert (environment["LC_TIME"], environment["RAY_COLOR_PREFIX"]) == ("y", "0")
    assert {"PATH", "HOME"} <= set(environment)


def test_the_written_tables_are_those_of_the_code():
    stale = [path.name for path, text in settings_tables.files().items() if path.read_text() != text]
    assert not stale, "run: recipe settings --write"


def test_env_example_is_a_valid_env_file_when_its_lines_are_used(empty_folder):
    lines = [
        line[1:]
        for line in settings_tables.env_example().splitlines()
        if line[:1] == "#" and line[1:2].isupper()
    ]
    used = [line for line in lines if "=" in line]
    assert len(used) == len(Settings.model_fields)
    (empty_folder / ".env").write_text("\n".join(used))
    load("smoke", ["DRY_RUN=1"])


@pytest.mark.parametrize("arguments", [["--help"], ["smoke", "--help"], ["smoke", "--dry-run"], ["settings"]])
def test_help_and_dry_runs_import_neither_torch_nor_ray_and_write_nothing(empty_folder, arguments):
    code = f"import sys; from recipe.cli import app; app({arguments!r}, standalone_mode=False)"
    check = "; assert not {'torch', 'ray', 'transformers', 'matplotlib'} & set(sys.modules), 'imported'"
    done = subprocess.run(
        [sys.executable, "-c", code + check], capture_output=True, text=True, cwd=empty_folder
    )
    assert done.returncode == 0, done.stderr
    assert list(empty_folder.iterdir()) == []


def test_a_password_in_a_refused_address_is_not_shown(empty_folder):
    with pytest.raises(BadInputError) as refused:
        load("smoke", ["DAYTONA_API_URL=http://user:PLANTED@host/"])
    assert "PLANTED" not in str(refused.value)
    assert "(secret)@host" in str(refused.value)
