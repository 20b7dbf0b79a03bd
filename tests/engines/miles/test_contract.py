"""The contract on small sources: what fits is told with its place, and each drift is seen to fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import small_sources

from recipe.engines.miles.contract import check
from recipe.engines.miles.contract.sources import Sources
from recipe.engines.miles.contract.variables import DOUBTFUL
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
PARSER = "megatron/megatron/training/arguments.py"
ENVIRONMENT = {"MILES_EXPERIMENTAL_ROLLOUT_REFACTOR": "1"}


def flag(text: str) -> Flag:
    name, *values = text.split()
    return Flag(name, tuple(values), "EXTRA_ARGS (argument)")


class Small:
    """Sources of a folder, which a test changes before it asks."""

    def __init__(self, folder):
        self.folder, self.names = folder, list(small_sources.write(folder).by_name)

    @property
    def sources(self) -> Sources:
        return Sources({name: small_sources.Source(f"{name}/", self.folder / name) for name in self.names})

    def change(self, file, old, new):
        path = self.folder / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    def told(self, *flags, plugins=None, **environment):
        called = [Flag(name, (path,), "recipe") for name, path in (PLUGINS | (plugins or {})).items()]
        lines = check.contract(self.sources, [*called, *map(flag, flags)], ENVIRONMENT | environment)
        # The plugins' own flags are not registered here.
        return [line for line in lines if line.name[5:].split()[0] not in PLUGINS]

    def facts(self, start, *flags, **more):
        """Those of the one line whose name starts so, with its verdict."""
        lines = self.told(*flags, **more)
        found = [line for line in lines if line.name.startswith(start)]
        assert len(found) == 1, [str(line) for line in lines]
        return {"verdict": found[0].status, **found[0].facts}


@pytest.fixture
def small(tmp_path):
    return Small(tmp_path)


def test_a_job_that_fits_is_ok_throughout(small):
    lines = small.told("--lr 1e-5", SEEN="1")
    assert [str(line) for line in lines if line.status != "ok"] == []
    assert len([line for line in lines if line.name.startswith("plugin")]) == 7
    where = small.facts("flag --lr", "--lr 1e-5")["where"]
    assert where == "megatron/megatron/training/arguments.py:10"


FITTING = {
    "--lr 1e-5": "--lr VALUE",
    "--betas 0.9 0.98": "--betas VALUE VALUE",
    "--logging": "--logging",
    "--no-logging": "--no-logging",
    "--heads 4": "--heads VALUE",
    "--parallel": "--parallel",
    "--disable-bias": "--disable-bias",
    "--method uniform": "--method {uniform,block}",
    "--backend local": "--backend VALUE (type not judged)",
    "--sizes 1 2": "--sizes VALUE [VALUE ...]",
    "--other-name 3": "--other-name VALUE",
    "--save x": "--save VALUE",
    "--kind second": "--kind {first,second}",
    "--tokenizer other": "--tokenizer {default,other}",
    "--store x": "--store VALUE (choices not judged)",
    "--server": "--server [VALUE]",
    "--options {}": "--options VALUE (type not judged)",
    "--seed 1": "--seed VALUE",
    "--heartbeat-interval 1": "--heartbeat-interval VALUE",
    "--router-assignment min_load": "--router-assignment {random,min_load}",
    "--sglang-router-policy x": "--sglang-router-policy VALUE",
    "--sglang-attention-backend fa4": "--sglang-attention-backend {fa3,fa4}",
    "--sglang-fp32-head": "--sglang-fp32-head",
    "--sglang-ep-size 1": "--sglang-ep-size VALUE",
    "--sglang-expert-parallel-size 1": "--sglang-expert-parallel-size VALUE",
    "--sglang-tokens 1k": "--sglang-tokens VALUE (type not judged)",
    "--sglang-names a b": "--sglang-names VALUE [VALUE ...]",
    "--sglang-level high": "--sglang-level {low,high}",
    "--sglang-old-switch": "--sglang-old-switch VALUE (action not judged)",
    "--max-seq-len 32768": "--max-seq-len VALUE",
}
REFUSED = {
    "--num-rollouts 3": "nothing; the nearest is --num-rollout",
    "--num-roll 3": "nothing; the nearest is --num-rollout",
    "--never-registered": "nothing",
    "--hidden 1": "nothing",
    "--later 1": "nothing",
    "--bias": "nothing",
    "--sglang-port 1": "nothing",
    "--sglang-plain 1": "nothing",
    "--sglang-hidden 1": "nothing",
    "--port 1": "nothing",
    "--kind third": "invalid choice: 'third'",
    "--tokenizer none": "invalid choice: 'none'",
    "--method none": "invalid choice: 'none'",
    "--sglang-attention-backend fa9": "invalid choice: 'fa9'",
    "--router-assignment manual": "invalid choice: 'manual'",
    "--parallel 1": "1 is too much",
    "--num-rollout": "expected one argument",
    "--num-rollout 1 2": "2 is too much",
    "--num-rollout 1.5": "invalid int value: '1.5'",
    "--lr fast": "invalid float value: 'fast'",
    "--ports": "expected at least one argument",
    "--betas 0.9": "expected 2 arguments",
}


def test_every_way_of_registering_a_flag_is_read(small):
    lines = {line.name: line for line in small.told(*FITTING)}
    got = {text: (lines[f"flag {text}"].status, lines[f"flag {text}"].facts["expected"]) for text in FITTING}
    assert got == {text: ("ok", expected) for text, expected in FITTING.items()}


def test_a_flag_that_upstream_would_refuse_is_a_drift(small):
    lines = {line.name: line for line in small.told(*REFUSED)}
    for text, found in REFUSED.items():
        line = lines[f"flag {text}"]
        assert (line.status, line.name) == ("DRIFT", f"flag {text}")
        assert found in line.facts["found"], line
        assert "EXTRA_ARGS (argument)" in line.facts["where"]
        assert "EXTRA_ARGS" in line.facts["run"]


def test_flags_of_the_generate_function_need_the_variable_that_lets_miles_ask_it(small):
    small.names.remove("megatron")  # whatever is missing
    line = small.facts("flag --max", "--max-seq-len 1", MILES_EXPERIMENTAL_ROLLOUT_REFACTOR="0")
    assert (line["verdict"], line["found"]) == ("DRIFT", "only with MILES_EXPERIMENTAL_ROLLOUT_REFACTOR=1")


def test_the_models_flags_are_read_from_the_shell_file_without_running_it(small):
    file = "miles/scripts/models/inkling-small.sh"
    for name in ("--layers 42", "--no-bias", "--heads 8"):
        assert small.facts(f"flag {name}")["verdict"] == "ok"
    small.change(file, "--heads 8", "--heads many")
    line = small.facts("flag --heads")
    assert line["verdict"] == "DRIFT"
    assert line["where"].endswith("scripts/models/inkling-small.sh:5)")
    small.change(file, "MODEL_ARGS=(", "OTHER=(")
    assert small.facts("the model's flags")["verdict"] == "DRIFT"


def test_a_variable_is_told_with_the_place_that_reads_it_and_is_a_drift_where_nobody_does(small):
    read = {
        "SEEN": "megatron/megatron/core/parallel.py:2",
        "LIMIT": "megatron/megatron/core/parallel.py:3",
        "HOST_ADDRESS": "miles/miles/utils/environ.py:4",
        "SGLANG_SWITCH": "sglang/sglang/srt/use.py:1",
        "NCCL_NVLS_ENABLE": "a compiled library in the image",
        "AGENT_SERVER_URL": "recipe/plugins/agent.py:",
    }
    unread = ("NOBODY", "ONLY_SET", "ONLY_IN_A_TEST", "SGLANG_ONLY_SET", "AGENT_SERVER_URI")
    lines = {line.name: line for line in small.told(**dict.fromkeys([*read, *unread, *DOUBTFUL], "1"))}
    assert [lines[f"variable {name}"].status for name in DOUBTFUL] == ["skip"]
    for name, where in read.items():
        assert lines[f"variable {name}"].facts["where"].startswith(where)
    assert [lines[f"variable {name}"].facts["found"] for name in unread] == ["nobody reads it"] * len(unread)


@pytest.mark.parametrize(
    ("file", "old", "new", "plugin", "found"),
    [
        ("generate", 'prompt="", ', "", "--custom-agent", "missing a required argument: 'prompt'"),
        ("generate", "await custom", "custom", "--custom-agent", "doesn't await it"),
        ("loop", "hook(args)", "hook(args, 1)", "--custom-agent", "too many positional"),
        ("loop", "rm_function(args, sample,", "rm_function(sample,", "--custom-rm", "missing a required"),
        ("loop", "self.filter, args, group", "self.filter, group", "--dynamic", "missing a required"),
        ("loop", "call_dynamic", "await call_dynamic", "--dynamic", "Miles awaits it"),
        ("loop", "return fn(input)", "return fn(input, 1)", "--rollout", "too many positional"),
        ("loop", "= fn(input)", "= fn(input, 1)", "--rollout", "too many positional"),
    ],
)
def test_a_plugin_that_miles_calls_otherwise_is_a_drift(small, file, old, new, plugin, found):
    small.change(f"miles/miles/rollout/{file}.py", old, new)
    drifts = [line for line in small.told() if line.bad]
    assert len(drifts) == 1, [str(line) for line in drifts]
    assert drifts[0].name.startswith(f"plugin {plugin}")
    assert found in drifts[0].facts["found"]


@pytest.mark.parametrize("path", ["recipe.plugins.reward.gone", "recipe.plugins.gone.rm", "miles.gone.rm"])
def test_a_plugin_that_is_no_function_is_a_drift(small, path):
    line = small.facts(f"plugin --custom-rm-path {path}", plugins={"--custom-rm-path": path})
    assert (line["verdict"], line["found"]) == ("DRIFT", "nothing of that name")


def test_a_plugin_that_no_source_here_calls_or_defines_is_not_judged(small):
    (small.folder / "miles/miles/rollout/inference_rollout/inference_rollout_common.py").unlink()
    small.change("miles/miles/rollout/loop.py", "await rm_function(", "await something(")
    skipped = [line.facts["reason"] for line in small.told() if line.status == "skip"]
    assert skipped == ["no source here has a call of rm_function", "no source here has its __call__"]


@pytest.mark.parametrize("file", [PARSER, "miles/miles/rollout/loop.py", "sglang/sglang/srt/server_args.py"])
def test_a_source_file_that_is_no_python_is_a_drift_with_its_line(small, file):
    path = small.folder / file
    path.write_text(path.read_text() + "\ndef broken(:\n")
    assert small.facts("a source file")["where"] == f"{path}:{len(path.read_text().splitlines())}"


def test_a_parser_that_is_not_as_it_was_is_a_drift(small):
    small.change("miles/miles/backends/sglang_utils/arguments.py", "_SKIPPED", "_OTHER")
    assert small.facts("the parser of sglang")["verdict"] == "DRIFT"
    (small.folder / PARSER).unlink()
    assert small.facts("the parser of megatron")["verdict"] == "DRIFT"


def test_what_may_stand_where_nothing_can_be_read_is_not_judged(small):
    flags = ("--num-rollout 1", "--lr x", "--zzz 1", "--sglang-fp32-head", "--router-assignment min_load")
    small.names = ["megatron", "sglang", "miles"]
    lines = {line.name: line for line in small.told(*flags, NOBODY="1")}
    assert [lines[f"flag {one}"].status for one in flags] == ["ok", "DRIFT", "DRIFT", "ok", "skip"]
    assert lines["variable NOBODY"].status == "DRIFT"
    small.names = ["megatron", "sglang", "router"]
    lines = {line.name: line for line in small.told(*flags, NOBODY="1")}
    assert [lines[f"flag {one}"].status for one in flags] == ["skip", "DRIFT", "skip", "ok", "ok"]
    assert lines["variable NOBODY"].status == "skip"
    assert "Miles" in lines["the model's flags and the plugins"].facts["reason"]
    small.names = ["megatron", "sglang", "miles", "router"]
    small.change(PARSER, "import RunConfig", "import Gone as RunConfig")
    reason = small.facts("flag --save", "--save x")["reason"]
    assert reason.endswith("nothing can be read: megatron/megatron/training/arguments.py:8")


@pytest.fixture
def chosen(small, tmp_path, monkeypatch):
    """Settings that name the sources, and a Python on PATH that says where the router is."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    answer = f"printf '\\nfound:\\n%s\\n' {tmp_path}/router/sglang_router"
    python.write_text(f'#!/bin/sh\n[ "$3" = sglang_router ] && {answer}\n')
    python.chmod(0o755)
    # Our own Python, first on PATH, is not the one that trains.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{python.parent}:/usr/bin:/bin")
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "python").symlink_to(tmp_path / "sglang")
    folders = {"MILES_DIR": "miles", "MEGATRON_PATH": "megatron", "SGLANG_DIR": "checkout"}
    return load_checkouts([f"{name}={tmp_path / folder}" for name, folder in folders.items()])


def test_a_feature_that_is_not_there_and_an_unknown_flag_are_both_told_before_what_fits(chosen, capsys):
    flags = [flag("--lr 1e-5"), flag("--zzz 1"), flag("--router-assignment min_load")]
    assert check.report(chosen, flags, ENVIRONMENT, as_json=True) == 1
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
    assert check.report(chosen, flags, ENVIRONMENT, as_json=False) == 1
    place = chosen.megatron_path / "megatron/training/arguments.py:10"
    assert f"ok     flag --lr 1e-5 | --lr VALUE | registered | {place}\n" in capsys.readouterr().out
    with pytest.raises(BadInputError, match="the sources don't take this job") as refused:
        check.require(chosen, flags, ENVIRONMENT)
    assert "flag --zzz 1" in str(refused.value)
    assert "surplus trials are cancelled" in str(refused.value)
