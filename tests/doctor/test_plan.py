"""The plan's figures are those that a hand makes of the same numbers, and of what the real parts take."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from recipe.doctor import plan, plan_report, shapes
from recipe.errors import BadInputError
from recipe.events import EventLog
from recipe.resolve import load, load_sources
from recipe.untrusted import size

GIB = 1024**3
# One expert: gate, up and down, 4096 x 2048 each. Attention: q, o 4096 x 4096, k, v 4096 x 1024, r 4096 x 512.
EXPERT = 3 * 4096 * 2048
ATTENTION = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 512
# What this leaves out of a layer (norms, convolutions, profiles, router) is less than a thousandth of it.
LAYER = 258 * EXPERT + ATTENTION
HEAD = 201024 * 4096
LAST_STAGE = (7 * LAYER + HEAD) / 8


def figures(made: plan.Plan) -> dict[str, float]:
    return {figure.name: figure.value for table in made.figures.values() for figure in table}


@pytest.fixture
def production(empty_folder):
    return plan.build(load_sources())


def test_the_parameters_are_those_of_the_real_architecture():
    import torch
    from transformers import InklingForCausalLM, InklingTextConfig

    config = InklingTextConfig(
        hidden_size=4096, num_hidden_layers=42, vocab_size=201024, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, swa_num_attention_heads=32, swa_num_key_value_heads=8, swa_head_dim=128, d_rel=16,
        rel_extent=1024, sliding_window_size=512, n_routed_experts=256, num_experts_per_tok=6, n_shared_experts=2,
        intermediate_size=16384, moe_intermediate_size=2048, mlp_layer_types=["dense"] * 2 + ["sparse"] * 40,
    )  # fmt: skip
    with torch.device("meta"):
        model = InklingForCausalLM(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == shapes.TOTAL


def test_the_parameters_of_the_tiny_model_are_known():
    from recipe.engines.local.model import build_model, tiny_config

    assert sum(parameter.numel() for parameter in build_model(tiny_config()).parameters()) == plan.TINY


def test_the_parameters_add_up_to_nearly_what_is_published(production):
    # 40 sparse and 2 dense layers, embedding and head; the card says 276e9, of which 12e9 are active.
    total = 40 * LAYER + 2 * (ATTENTION + 3 * 4096 * 16384) + 2 * HEAD
    active = total - 40 * 250 * EXPERT
    assert pytest.approx(total, rel=1e-3) == shapes.TOTAL
    assert pytest.approx(active, rel=5e-3) == shapes.ACTIVE
    assert pytest.approx(276e9, rel=0.05) == shapes.TOTAL
    assert pytest.approx(12e9, rel=0.01) == shapes.ACTIVE
    assert production.figures["model"][0].formula.startswith("-4.5%")


@pytest.mark.parametrize("stages", [6, 7, 8])
def test_every_parameter_is_on_a_stage(stages):
    last = {"--decoder-last-pipeline-num-layers": "7"} if stages == 8 else {}
    mesh = shapes.Mesh.of(
        {"--tensor-model-parallel-size": "8", "--expert-model-parallel-size": "8",
         "--pipeline-model-parallel-size": str(stages), **last}
    )  # fmt: skip
    assert sum(mesh.stages) == 42
    # Eight GPUs hold what is split once and the small rest eight times.
    assert sum(8 * mesh.parameters(stage) for stage in range(stages)) == pytest.approx(shapes.TOTAL, rel=2e-3)


def test_gpu_memory_is_what_a_hand_makes_of_shapes_mesh_and_settings(production):
    found, phases = figures(production), production.phases["GPU memory"]
    assert found["engine weights"] == pytest.approx(2 * 263.655e9 / 8 / GIB, rel=1e-3)
    # A GPU has one of eight heads: key and value of 128 numbers of 2 bytes, in each of 42 layers.
    assert found["KV pool"] == pytest.approx(1048576 * 42 * 2 * 128 * 2 / GIB)
    # 256 requests x 3; residual convolutions 4096 wide, those of key and value 128; 3 tokens of 4 bytes.
    assert found["convolution states"] == pytest.approx(768 * 42 * (4096 + 4096 + 128 + 128) * 3 * 4 / GIB)
    assert found["weights"] == pytest.approx(2 * LAST_STAGE / GIB, rel=2e-3)
    assert found["gradients"] == pytest.approx(4 * LAST_STAGE / GIB, rel=2e-3)
    assert found["kept activations"] == pytest.approx(7 * 32768 / 8 * 4096 * 2 / GIB)
    assert found["experts' work"] == pytest.approx(2 * (32768 * 6 / 8 * 3) * (3 * 4096 + 3 * 2048) * 2 / GIB)
    assert found["logits"] == pytest.approx(32768 * 201024 / 8 * 4 * 4 / GIB)
    assert phases["rollout"][8] == pytest.approx(
        found["engine weights"] + found["KV pool"] + found["convolution states"] + 6
    )
    step = ("weights", "gradients", "kept activations", "experts' work", "position bias", "logits")
    assert phases["second optimizer step"][8] == pytest.approx(sum(found[name] for name in step) + 6)
    assert phases["weight sync"][8] == pytest.approx(found["engine weights"] + 4 * 0.5 + 6)


def test_host_memory_is_what_a_hand_makes_of_the_largest_node(production):
    node, found, phases = 8 * LAST_STAGE, figures(production), production.phases["host memory"]
    servers, routes = 64 * 1.29e9, 128 * 32767 * 42 * 6 * 4
    assert routes == pytest.approx(4.2e9, rel=0.01)
    # Two backups of 2 bytes, fp32 weights, and what the paused trainer had on its GPUs (2 + 4 bytes).
    start = (2 + 2 + 4 + 6) * node + servers
    assert phases["first rollout"][8] == pytest.approx(start / GIB + 80, rel=2e-3)
    # Adam's two moments and the gradients on the host come with the first step and stay.
    later = start + routes + (8 + 4) * node
    assert phases["first optimizer step"][8] == pytest.approx(later / GIB + 80, rel=2e-3)
    assert phases["save"][8] == pytest.approx((later + 2 * node) / GIB + 80, rel=2e-3)
    assert found["session servers"] == pytest.approx(76.9, abs=0.1)


def test_six_seven_and_eight_nodes_differ_by_their_largest_stage(production):
    weights = {nodes: production.phases["host memory"]["save"][nodes] for nodes in (6, 7, 8)}
    # 42 layers in six parts are seven each, as in the last of eight; in seven parts they are six.
    assert weights[6] == weights[8]
    assert weights[8] - weights[7] == pytest.approx(28 * LAYER / GIB, rel=2e-3)


def test_time_disk_and_kv_cache_are_what_a_hand_makes(production):
    found = figures(production)
    # 8 engines of 1500 tokens a second have 160 trials: 75 each; 15 turns of 500 tokens and 5 s, and 60 s.
    assert found["a trial"] == 60 + 15 * 5 + 15 * 500 / 75
    assert found["training a rollout"] == 128 * (1500 + 15 * 1000) / (150 * 64)
    seconds = 1200 + 100 * (235 + 220 + 180) + 2 * 600
    assert found["wall time"] == pytest.approx(seconds / 3600)
    assert found["GPU-hours"] == pytest.approx(64 * seconds / 3600)
    assert found["sandbox-hours"] == pytest.approx(100 * 160 * 235 / 3600)
    assert found["checkpoints"] == 2 * 550
    assert found["dumps"] == pytest.approx(423, abs=1)
    assert (found["needed"], found["there"]) == (20 * 32768, 1048576)
    assert production.findings == []


@pytest.mark.parametrize(
    ("words", "finding"),
    [
        (["AGENT_MAX_CONCURRENT=300"], "38 trials at once need 1245184 tokens"),
        (["EXTRA_ARGS=--sglang-max-total-tokens 400000"], "an engine has 400000"),
        (["EXTRA_ARGS=--sglang-mem-fraction-static 0.5"], "SGLang takes 70"),
    ],
)
def test_a_kv_cache_that_is_too_small_is_a_finding(empty_folder, words, finding):
    (found,) = plan.build(load_sources(words)).findings
    assert finding in found


def test_stages_that_cannot_share_the_layers_are_refused(empty_folder):
    with pytest.raises(BadInputError, match="42 layers can't be shared by 5 stages"):
        plan.build(load_sources(["NUM_NODES=5"]))


@pytest.mark.parametrize(
    "word", ["turns", "turns=", "turns=0", "turns=nan", "turns=inf", "turn=3", "heap_mb=3"]
)
def test_an_assumption_that_cannot_be_is_refused(empty_folder, word):
    with pytest.raises(BadInputError, match="an assumption can't be taken"):
        plan.build(load_sources(), [word])


def node(gpu_mib: int = 143771, available_mib: int = 2_000_000) -> dict[str, object]:
    gpus = [{"name": "H200", "memory_mib": gpu_mib, "memory_used_mib": 0}] * 8
    return {"ip": "10.0.0.1", "gpus": gpus, "memory_available_mib": available_mib}


@pytest.mark.parametrize(
    ("told", "code", "text"),
    [
        (node(), 0, ""),
        (node(gpu_mib=81559), 1, "rollout: 91 GiB of GPU memory, a GPU of 10.0.0.1 has 80"),
        (node(available_mib=1_330_000), 1, "save: 1377 GiB of host memory, 10.0.0.1 has 1299"),
        ({"ip": "10.0.0.1", "error": "no answer"}, 0, ""),
    ],
)
def test_nodes_with_too_little_are_findings(empty_folder, told, code, text):
    Path("nodes.json").write_text(json.dumps({"nodes": [told]}))
    console = Console(record=True, width=200, file=io.StringIO())
    assert plan_report.report(load_sources(), console, nodes_json=Path("nodes.json")) == code
    assert text in console.export_text()


@pytest.mark.parametrize("content", ["{", "{}", "[3]", '{"nodes": null}'])
def test_a_file_without_nodes_is_refused(empty_folder, content):
    Path("nodes.json").write_text(content)
    with pytest.raises(BadInputError):
        plan_report.report(load_sources(), Console(quiet=True), nodes_json=Path("nodes.json"))


def test_every_figure_tells_its_formula_or_its_source(production):
    for table in production.figures.values():
        assert all(figure.source and figure.unit for figure in table)
    names = {name for phases in plan.PHASES.values() for parts in phases.values() for name in parts}
    assert names <= set(figures(production))


def test_a_run_is_compared_with_its_plan(empty_folder, capsys):
    settings = load("smoke", ["NUM_ROLLOUT=2"])
    run = empty_folder / "run"
    events = EventLog(run / "events.jsonl")
    for number, tokens in enumerate((30, 40)):
        metrics = {"response_tokens_mean": tokens, "turns_mean": 2.0}
        events.write(
            "rollout", rollout=number, metrics=metrics, seconds={"generate": 10 + number, "train": 4.0}
        )
    facts = {"settings": {name: {"value": value} for name, value in settings.public().items()}}
    (run / "run_manifest.json").write_text(json.dumps(facts))
    (run / "trials").mkdir()
    (run / "trials" / "log").write_bytes(bytes(5_000_000))
    assert plan_report.report(load_sources(), Console(), run=run, as_json=True) == 0
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert measured["tokens sampled in a trial"] == [pytest.approx(2.4 * 16), 35.0]
    assert measured["sampling a rollout, s"][1] == 10.5
    assert measured["trials, GB"] == [pytest.approx(2 * 40 * 0.013 / 1000), 0.005]


def test_a_run_without_a_rollout_is_refused(empty_folder):
    settings = load("smoke", [])
    facts = {"settings": {name: {"value": value} for name, value in settings.public().items()}}
    (empty_folder / "run_manifest.json").write_text(json.dumps(facts))
    with pytest.raises(BadInputError, match="nothing to compare"):
        plan_report.report(settings, Console(quiet=True), run=empty_folder)


@pytest.mark.parametrize("manifest", ["[]", '{"settings": null}', '{"settings": {"lr": 3}}'])
def test_a_run_that_recorded_no_settings_is_refused(empty_folder, manifest):
    (empty_folder / "run_manifest.json").write_text(manifest)
    with pytest.raises(BadInputError, match="recorded no settings"):
        plan_report.report(load_sources(), Console(quiet=True), run=empty_folder)


def test_a_run_that_is_not_there_is_refused(empty_folder):
    with pytest.raises(BadInputError, match="there is no such run"):
        plan_report.report(load_sources(), Console(quiet=True), run=empty_folder / "none")


def test_nodes_from_a_pipe_are_refused_and_not_waited_for(empty_folder):
    os.mkfifo(empty_folder / "pipe")
    with pytest.raises(BadInputError, match="a file can't be read"):
        plan_report.report(load_sources(), Console(quiet=True), nodes_json=empty_folder / "pipe")


def test_only_the_files_of_a_trial_have_a_size(tmp_path, monkeypatch):
    (tmp_path / "log").write_bytes(bytes(100))
    (tmp_path / "gone").write_bytes(bytes(100))
    (tmp_path / "link").symlink_to(sys.executable)
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    look = Path.lstat

    def vanishing(path):
        if path.name == "gone":
            path.unlink()
        return look(path)

    monkeypatch.setattr(Path, "lstat", vanishing)
    assert size(tmp_path) == 100
