"""The job itself, twice for each agent, with one seed in the deterministic mode: everything is real, only small."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from recipe.engines.local import checkpoint
from recipe.engines.local.model import build_model, load_weights, tiny_config
from recipe.engines.local.trainer import Trainer, TrainingSample
from recipe.events import TIME, EventReader, repeatable
from recipe.harbor.scratch import default_root, sweep
from recipe.watch.history import settings_of
from recipe.watch.live import replay

ROOT = Path(__file__).parents[2]
SHAPE = [
    "DETERMINISTIC=1",
    "NUM_ROLLOUT=2",
    "ROLLOUT_BATCH_SIZE=2",
    "OVER_SAMPLING_BATCH_SIZE=3",
    "N_SAMPLES_PER_PROMPT=4",
    "SAVE_INTERVAL=1",
    f"CACHE_DIR={ROOT / '.cache'}",
]
# A job takes under a minute, and one or three more when the warm start is built first; on a busy machine more.
JOB_SECONDS = 900


@dataclass(frozen=True)
class Run:
    folder: Path
    output: str

    @property
    def metrics(self) -> list[dict[str, Any]]:
        events = map(json.loads, (self.folder / "events.jsonl").read_text().splitlines())
        rollouts = [event["metrics"] for event in events if event["kind"] == "rollout"]
        return [{name: of[name] for name in of if not TIME.search(name)} for of in rollouts]

    def samples(self, rollout: int) -> list[dict[str, Any]]:
        path = self.folder / "dump_details" / f"rollout_{rollout:07d}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def weights(self, rollout: int) -> dict[str, np.ndarray]:
        return load_file(self.folder / "checkpoints" / f"iter_{rollout:07d}" / checkpoint.WEIGHTS)


def run_job(runs_root: Path, name: str, *changed: str) -> Run:
    argv = [
        sys.executable,
        "-m",
        "recipe",
        "smoke",
        *SHAPE,
        f"RUNS_ROOT={runs_root}",
        f"RUN_NAME={name}",
        *changed,
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=JOB_SECONDS)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return Run(runs_root / name, done.stdout)


# As little as a group needs: its second trial has a neighbour that came first.
TERMINUS_2 = (
    "AGENT=terminus-2",
    "NUM_ROLLOUT=1",
    "OVER_SAMPLING_BATCH_SIZE=2",
    "N_SAMPLES_PER_PROMPT=2",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    root = tmp_path_factory.mktemp("runs")
    return run_job(root, "first"), run_job(root, "second")


def test_the_same_seed_gives_the_same_metrics_and_the_same_weights(runs: tuple[Run, Run]) -> None:
    first, second = runs
    assert len(first.metrics) == 2
    assert first.metrics == second.metrics
    for rollout in range(2):
        theirs = second.weights(rollout)
        assert all(np.array_equal(value, theirs[name]) for name, value in first.weights(rollout).items())


def test_the_same_seed_gives_the_same_events_to_the_byte(runs: tuple[Run, Run]) -> None:
    first, second = (repeatable(run.folder) for run in runs)
    assert first == second
    # Two rollouts of three groups of four, of which one is surplus.
    assert first.count(b'"state": "done"') == 24


def test_terminus_2_shows_the_same_whenever_it_is_looked_at(tmp_path: Path) -> None:
    first, second = (run_job(tmp_path, name, *TERMINUS_2) for name in ("first", "second"))
    assert repeatable(first.folder) == repeatable(second.folder)
    assert first.samples(0) == second.samples(0)  # each token, and the probability it was sampled with


def test_every_optimizer_step_moves_the_parameters(runs: tuple[Run, Run]) -> None:
    before, after = runs[0].weights(0), runs[0].weights(1)
    moved = {name for name, value in before.items() if not np.array_equal(value, after[name])}
    frozen = {name for name in before if name.endswith("global_scale")}
    assert moved == before.keys() - frozen
    assert all(metrics["grad_norm"] > 0 for metrics in runs[0].metrics)


def test_trainer_and_rollout_agree_on_every_probability(runs: tuple[Run, Run]) -> None:
    for metrics in runs[0].metrics:
        assert metrics["logprob_difference"] < 1e-4
        assert metrics["samples_without_routes"] == 0
        assert metrics["tis_mean"] == pytest.approx(1.0, abs=1e-3)


def test_shuffled_routes_would_be_seen(runs: tuple[Run, Run]) -> None:
    torch.set_num_threads(1)
    model = build_model(tiny_config())
    load_weights(model, runs[0].weights(0))
    trainer = Trainer(model, learning_rate=1e-3)

    def difference(shift: int) -> float:
        samples = [training_sample(row, shift) for row in runs[0].samples(1)]
        sampled = [p for s in samples for p, trained in zip(s.logprobs, s.loss_mask, strict=True) if trained]
        return float((trainer.token_logprobs(samples) - torch.tensor(sampled)).abs().mean())

    assert difference(0) < 1e-4
    assert difference(3) > 0.05


def training_sample(row: dict[str, Any], shift: int) -> TrainingSample:
    routes = (np.array(row["routed_experts"], dtype=np.int8) + shift) % 8
    return TrainingSample(
        row["group"], row["tokens"], row["loss_mask"], row["rollout_log_probs"], routes.astype(np.int8), 0.0
    )


def test_both_outcomes_are_seen_and_rewarded(runs: tuple[Run, Run]) -> None:
    rewards = {sample["reward"] for rollout in range(2) for sample in runs[0].samples(rollout)}
    assert rewards == {0.0, 1.0}


def test_the_trained_ids_are_the_sampled_ids(runs: tuple[Run, Run]) -> None:
    turns: dict[str, list[list[int]]] = {}
    for line in (runs[0].folder / "dump_details" / "engine_turns.jsonl").read_text().splitlines():
        turn = json.loads(line)
        turns.setdefault(turn["session"], []).append(turn["ids"])
    sampled = [list(itertools.chain(*session)) for session in turns.values()]
    for rollout in range(2):
        for sample in runs[0].samples(rollout):
            marked = zip(sample["tokens"], sample["loss_mask"], strict=True)
            assert [token for token, trained in marked if trained] in sampled


def test_each_kept_sample_has_its_trial(runs: tuple[Run, Run]) -> None:
    for rollout in range(2):
        for sample in runs[0].samples(rollout):
            trial = runs[0].folder / "trials" / sample["trial_name"]
            result = json.loads((trial / "result.json").read_text())
            assert result["verifier_result"]["rewards"]["reward"] == sample["reward"]
            assert (trial / "agent" / "trajectory.jsonl").stat().st_size > 0


def test_the_surplus_is_told(runs: tuple[Run, Run]) -> None:
    assert [metrics["groups_surplus"] for metrics in runs[0].metrics] == [1, 1]


def test_nothing_is_left(runs: tuple[Run, Run]) -> None:
    mine = str(runs[0].folder.parent).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                facts = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            assert mine not in facts, facts
    # A folder whose owner is gone would be found and removed now; live ones are another run's.
    assert sweep(default_root()) == 0


def test_no_alarm_is_raised_and_every_sandbox_is_accounted_for(runs: tuple[Run, Run]) -> None:
    folder = runs[0].folder
    events = list(EventReader(folder / "events.jsonl").new())
    assert replay(events, settings_of(folder)) == []
    states = [event["state"] for event in events if event["kind"] == "sandbox"]
    assert states.count("created") == states.count("deleted") == len(list((folder / "trials").iterdir()))


def test_the_run_folder_is_the_references(runs: tuple[Run, Run]) -> None:
    names = {path.name for path in runs[0].folder.iterdir()}
    assert names >= {
        "logs",
        "trials",
        "checkpoints",
        "dump_details",
        "launcher",
        "run_manifest.json",
        "run_manifest.md",
    }
    assert (runs[0].folder / "logs" / "train.log").stat().st_size > 0
    assert (runs[0].folder / "report" / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_a_checkpoint_continues_in_a_new_run(runs: tuple[Run, Run], tmp_path: Path) -> None:
    parent = runs[0].folder / "checkpoints"
    child = run_job(tmp_path, "child", f"LOAD_DIR={parent}", "NUM_ROLLOUT=1")
    assert child.metrics[0]["kl"] == pytest.approx(0.0, abs=1e-6)  # the reference is what was loaded
    assert child.metrics[0]["logprob_difference"] < 1e-4
