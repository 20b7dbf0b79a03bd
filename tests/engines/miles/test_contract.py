"""The contract on small sources: what fits is told with its place, and each drift is seen to fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small_sources

from recipe.engines.miles import contract
from recipe.engines.miles.contract import check
from recipe.engines.miles.contract.sources import Sources
from recipe.engines.miles.flags import Flag
from recipe.errors import BadInputError
from recipe.resolve import load_checkouts

PLUGINS = {
    "--custom-generate-function-path": "miles.rollout.generate.generate",
    "--custom-agent-function-path": "recipe.plugins.agent.run",
    "--custom-rm-path": "recipe.plugins.reward.rm",
    "--rollout-function-path": "recipe.plugins.rollout.RolloutFn",
    "--dynamic-sampling-filter-path": "recipe.plugins.filters.keep_group",
}
ENVIRONMENT = {"MILES_EXPERIMENTAL_ROLLOUT_REFACTOR": "1"}


@pytest.fixture
def sources(tmp_path) -> Sources:
    return small_sources.write(tmp_path)


def flag(text: str) -> Flag:
    name, *values = text.split()
    return Flag(name, tuple(values), "EXTRA_ARGS (argument)")


def told(sources: Sources, *flags: str, plugins: dict[str, str] = PLUGINS, **environment: str):
    given = [*(Flag(name, (path,), "recipe") for name, path in plugins.items()), *map(flag, flags)]
    return list(check.contract(sources, given, ENVIRONMENT | environment))


def facts(lines, start: str) -> dict[str, str]:
    """Those of the one line whose name starts so, with its verdict."""
    found = [line for line in lines if line.name.startswith(start)]
    assert len(found) == 1, [str(line) for line in lines]
    return {"verdict": found[0].status, **found[0].facts}


def change(sources: Sources, source: str, file: str, old: str, new: str) -> None:
    path = sources.by_name[source].folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def test_a_job_that_fits_is_ok_throughout(sources):
    lines = told(sources, "--lr 1e-5", SEEN="1")
    assert [str(line) for line in lines if line.status != "ok"] == []
    assert facts(lines, "flag --lr")["where"] == "megatron/megatron/training/arguments.py:18"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--lr 1e-5", "float"),
        ("--betas 0.9 0.98", "float, 2 times"),
        ("--logging", "no value"),
        ("--no-logging", "no value"),
        ("--layers 6", "int"),
        ("--heads 4", "int"),
        ("--ratio 0.5", "float"),
        ("--parallel", "no value"),
        ("--no-bias", "no value"),
        ("--method uniform", "one of uniform, block"),
        ("--backend local", "one of flash, local"),
        ("--sizes 1 2", "int, once or more"),
        ("--other-name 3", "int"),
        ("--save x", "str"),
        ("--kind second", "one of first, second"),
        ("--mode b", "one of a, b"),
        ("--server", "str or nothing"),
        ("--options {}", "str (upstream's own type is not judged)"),
        ("--seed 1", "int"),
        ("--router-assignment min_load", "one of random, min_load"),
        ("--sglang-attention-backend fa4", "one of fa3, fa4"),
        ("--sglang-fp32-head", "no value"),
        ("--sglang-ep-size 1", "int"),
        ("--sglang-expert-parallel-size 1", "int"),
        ("--sglang-tokens 1k", "str (upstream's own type is not judged)"),
        ("--sglang-names a b", "str, once or more"),
        ("--sglang-level high", "one of low, high"),
        ("--sglang-parser inkling", "one of auto, inkling, other"),
        ("--sglang-old-switch", "no value"),
        ("--max-seq-len 32768", "int"),
    ],
)
def test_every_way_of_registering_a_flag_is_read(sources, text, expected):
    line = facts(told(sources, text), f"flag {text}")
    assert (line["verdict"], line["expected"]) == ("ok", expected)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("--num-rollouts 3", "nothing; the nearest is --num-rollout"),
        ("--num-roll 3", "nothing; the nearest is --num-rollout"),
        ("--never-registered", "nothing"),
        ("--hidden 1", "nothing"),
        ("--later 1", "nothing"),
        ("--bias", "nothing"),
        ("--sglang-port 1", "nothing"),
        ("--sglang-plain 1", "nothing"),
        ("--sglang-hidden 1", "nothing"),
        ("--port 1", "nothing"),
        ("--router-host x", "nothing"),
        ("--kind third", "invalid choice: 'third'"),
        ("--method none", "invalid choice: 'none'"),
        ("--backend 1", "invalid choice: '1'"),
        ("--sglang-attention-backend fa9", "invalid choice: 'fa9'"),
        ("--sglang-parser nobody", "invalid choice: 'nobody'"),
        ("--router-assignment manual", "invalid choice: 'manual'"),
        ("--parallel 1", "1 is too much"),
        ("--num-rollout", "expected one argument"),
        ("--num-rollout 1 2", "2 is too much"),
        ("--num-rollout 1.5", "invalid int value: '1.5'"),
        ("--lr fast", "invalid float value: 'fast'"),
        ("--ports", "expected at least one argument"),
        ("--betas 0.9", "expected 2 arguments"),
    ],
)
def test_a_flag_that_upstream_would_refuse_is_a_drift(sources, text, found):
    line = facts(told(sources, text), f"flag {text}")
    assert line["verdict"] == "DRIFT"
    assert found in line["found"]
    assert "EXTRA_ARGS (argument)" in line["where"]
    assert "EXTRA_ARGS" in line["run"]


def test_flags_of_the_generate_function_need_the_variable_that_lets_miles_ask_it(sources):
    lines = told(sources, "--max-seq-len 1", MILES_EXPERIMENTAL_ROLLOUT_REFACTOR="0")
    line = facts(lines, "flag --max-seq-len")
    assert (line["verdict"], line["found"]) == ("DRIFT", "only with MILES_EXPERIMENTAL_ROLLOUT_REFACTOR=1")


def test_the_models_flags_are_read_from_the_shell_file_without_running_it(sources):
    lines = told(sources)
    assert facts(lines, "flag --layers 42")["verdict"] == "ok"
    assert facts(lines, "flag --disable-bias")["verdict"] == "ok"
    assert facts(lines, "flag --heads 8")["verdict"] == "ok"
    change(sources, "miles", "scripts/models/inkling-small.sh", "--heads 8", "--heads many")
    line = facts(told(sources), "flag --heads")
    assert line["verdict"] == "DRIFT"
    assert line["where"].endswith("scripts/models/inkling-small.sh:6)")
    change(sources, "miles", "scripts/models/inkling-small.sh", "MODEL_ARGS=(", "OTHER=(")
    assert facts(told(sources), "the model's flags")["found"] == "no such array"


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("SEEN", "megatron/megatron/core/parallel.py:2"),
        ("LIMIT", "megatron/megatron/core/parallel.py:3"),
        ("HOST_ADDRESS", "miles/miles/utils/environ.py:4"),
        ("SGLANG_SWITCH", "sglang/sglang/srt/use.py:1"),
        ("NCCL_NVLS_ENABLE", "a compiled library in the image"),
    ],
)
def test_a_variable_that_is_read_is_told_with_the_place(sources, name, where):
    line = facts(told(sources, **{name: "1"}), f"variable {name}")
    assert (line["verdict"], line["where"]) == ("ok", where)


def test_a_variable_of_our_plugins_is_read_by_them(sources):
    line = facts(told(sources, AGENT_SERVER_URL="http://x"), "variable AGENT_SERVER_URL")
    assert line["where"].startswith("recipe/plugins/agent.py:")


@pytest.mark.parametrize(
    "name", ["NOBODY", "ONLY_SET", "ONLY_IN_A_TEST", "SGLANG_ONLY_SET", "AGENT_SERVER_URI"]
)
def test_a_variable_that_nobody_reads_is_a_drift(sources, name):
    line = facts(told(sources, **{name: "1"}), f"variable {name}")
    assert (line["verdict"], line["found"]) == ("DRIFT", "nobody reads it")


@pytest.mark.parametrize(
    ("file", "old", "new", "plugin", "found"),
    [
        ("rollout/generate.py", 'prompt="", ', "", "--custom-agent", "missing a required argument: 'prompt'"),
        ("rollout/generate.py", "await agent(", "agent(", "--custom-agent", "doesn't await it"),
        (
            "rollout/loop.py",
            "await hook(args)",
            "await hook(args, 1)",
            "--custom-agent",
            "too many positional",
        ),
        ("rollout/loop.py", "await hook(args)", "hook(args)", "--custom-agent", "doesn't await it"),
        ("rollout/loop.py", "rm(args, sample,", "rm(sample,", "--custom-rm", "missing a required argument"),
        ("rollout/loop.py", "rm(args, sample,", "rm(args, sample, 1,", "--custom-rm", "too many positional"),
        (
            "rollout/loop.py",
            "self.filter, args, group",
            "self.filter, group",
            "--dynamic",
            "missing a required",
        ),
        ("rollout/loop.py", "call_filter(self", "await call_filter(self", "--dynamic", "Miles awaits it"),
        (
            "rollout/loop.py",
            "RolloutInput()",
            "RolloutInput(), 1",
            "--rollout-function",
            "too many positional",
        ),
        (
            "rollout/helpers.py",
            "found(input)",
            "found(input, 1)",
            "--rollout-function",
            "too many positional",
        ),
        (
            "rollout/loop.py",
            "load_function(args.custom_rm_path)",
            "None",
            "--custom-rm",
            "Miles never loads it",
        ),
    ],
)
def test_a_plugin_that_miles_calls_otherwise_is_a_drift(sources, file, old, new, plugin, found):
    change(sources, "miles", f"miles/{file}", old, new)
    drifts = [line for line in told(sources) if line.bad]
    assert len(drifts) == 1, [str(line) for line in drifts]
    assert drifts[0].name.startswith(f"plugin {plugin}")
    assert found in drifts[0].facts["found"]
    assert drifts[0].facts["where"].startswith("recipe/plugins/")


@pytest.mark.parametrize(
    "path", ["recipe.plugins.reward.gone", "recipe.plugins.gone.rm", "recipe.plugins.agent.logger"]
)
def test_a_plugin_that_is_no_function_is_a_drift(sources, path):
    line = facts(
        told(sources, plugins=PLUGINS | {"--custom-rm-path": path}), f"plugin --custom-rm-path {path}"
    )
    assert (line["verdict"], line["expected"]) == ("DRIFT", "a function or class")


def test_a_class_whose_base_no_source_has_is_not_judged(sources):
    (sources.by_name["miles"].folder / "miles/rollout/inference_rollout/inference_rollout_common.py").unlink()
    lines = [line for line in told(sources) if line.name.startswith("plugin --rollout-function-path")]
    assert [line.status for line in lines] == ["ok", "skip"]  # it has an __init__ of its own, and no __call__
    assert "no source at hand" in lines[1].facts["reason"]


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("megatron", "megatron/training/arguments.py"),
        ("miles", "miles/rollout/loop.py"),
        ("megatron", "megatron/core/parallel.py"),
    ],
)
def test_a_source_file_that_is_no_python_is_a_drift_with_its_line(sources, source, file):
    path = sources.by_name[source].folder / file
    path.write_text(path.read_text() + "\ndef broken(:\n")
    line = facts(
        [one for one in told(sources, SEEN="1") if one.bad and "source file" in one.name], "a source file"
    )
    assert line["where"] == f"{path}:{len(path.read_text().splitlines())}"


def test_a_parser_that_is_not_where_it_was_is_a_drift(sources):
    change(sources, "megatron", "megatron/training/arguments.py", "def add_megatron", "def add_other")
    line = facts(told(sources), "the parser of megatron")
    assert line["expected"] == "add_megatron_arguments in megatron.training.arguments"


def test_without_the_router_only_its_own_flags_are_not_judged(sources):
    part = Sources({name: one for name, one in sources.by_name.items() if name != "router"})
    lines = told(part, "--router-assignment min_load", "--zzz 1", NOBODY="1")
    assert "no router" in facts(lines, "flag --router")["reason"]
    assert facts(lines, "flag --zzz")["verdict"] == "DRIFT"
    assert facts(lines, "variable NOBODY")["verdict"] == "DRIFT"


def test_a_class_of_flags_that_can_not_be_found_is_told_once(sources):
    change(
        sources, "megatron", "megatron/training/arguments.py", "import RunConfig", "import Gone as RunConfig"
    )
    lines = told(sources, "--save x")
    assert "Gone can't be read" in facts(lines, "the flags of megatron/megatron/training/arguments")["reason"]
    assert facts(lines, "flag --save")["verdict"] == "DRIFT"


def test_what_is_in_no_source_at_hand_is_not_judged(sources):
    part = Sources({name: sources.by_name[name] for name in ("megatron", "sglang", "router")})
    flags = (
        "--num-rollout 1",
        "--lr x",
        "--sglang-fp32-head",
        "--sglang-port 1",
        "--router-assignment min_load",
    )
    lines = told(part, *flags, NOBODY="1")
    verdicts = {line.name.split()[1]: line.status for line in lines if line.name.startswith("flag")}
    assert [verdicts[one.split()[0]] for one in flags] == ["skip", "DRIFT", "ok", "ok", "ok"]
    assert facts(lines, "variable NOBODY")["verdict"] == "skip"
    assert "Miles" in facts(lines, "the model's flags and the plugins")["reason"]


@pytest.fixture
def chosen(sources, tmp_path, monkeypatch):
    """Settings that name the sources, and a Python on PATH that says where the router is."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\necho {tmp_path}/router/sglang_router\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}:/usr/bin:/bin")
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "python").symlink_to(tmp_path / "sglang")
    folders = {"MILES_DIR": "miles", "MEGATRON_PATH": "megatron", "SGLANG_DIR": "checkout"}
    return load_checkouts([f"{name}={tmp_path / folder}" for name, folder in folders.items()])


def test_a_feature_that_is_not_there_and_an_unknown_flag_are_both_told_before_what_fits(chosen, capsys):
    flags = [flag("--lr 1e-5"), flag("--zzz 1"), flag("--router-assignment min_load")]
    assert contract.report(chosen, flags, ENVIRONMENT, as_json=True) == 1
    answer = json.loads(capsys.readouterr().out)
    verdicts = [line["verdict"] for line in answer["lines"]]
    assert verdicts == sorted(verdicts, key=["DRIFT", "skip", "ok"].index)
    by_name = {line["what"]: line for line in answer["lines"]}
    assert by_name["miles: surplus trials are cancelled"]["verdict"] == "DRIFT"
    assert by_name["flag --zzz 1"]["found"] == "nothing"
    assert by_name["flag --router-assignment min_load"]["verdict"] == "ok"
    assert not any("commit" in name for name in by_name)


def test_the_table_has_a_row_for_each_comparison_and_a_launch_is_refused_with_all_drifts(chosen, capsys):
    flags = [flag("--lr 1e-5"), flag("--zzz 1")]
    assert contract.report(chosen, flags, ENVIRONMENT, as_json=False) == 1
    table = capsys.readouterr().out
    place = Path("megatron/training/arguments.py:18")
    assert f"ok     flag --lr 1e-5 | float | registered | {chosen.megatron_path / place}\n" in table
    with pytest.raises(BadInputError, match="the sources don't take this job") as refused:
        contract.require(chosen, flags, ENVIRONMENT)
    assert "flag --zzz 1" in str(refused.value)
    assert "surplus trials are cancelled" in str(refused.value)
