"""The real flags against published packages near to the pins: neighbours, since the pins can't be had here."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recipe import resolve
from recipe.engines.miles.contract import check
from recipe.engines.miles.contract.sources import Source, Sources
from recipe.engines.miles.contract.variables import DOUBTFUL
from recipe.engines.miles.environment import environment
from recipe.engines.miles.flags import Flag, flags
from recipe.pins import PROJECT_ROOT

PINNED = PROJECT_ROOT / "pins" / "neighbours.txt"
# What uv says when it did not reach an index, rather than an index that has no such file.
UNREACHABLE = ("Failed to fetch", "network was disabled", "error sending request")
# Registered by Miles itself, or by the router, of which there is no neighbour here.
OWN = """
--actor-num-gpus-per-node --actor-num-nodes --advantage-estimator --balance-data --colocate
--custom-agent-function-path --custom-generate-function-path --custom-rm-path --disable-wandb-random-suffix
--dump-details --dynamic-sampling-filter-path --entropy-coef --eps-clip --eps-clip-c --eps-clip-high
--hf-checkpoint --input-key --kl-loss-coef --kl-loss-type --max-seq-len --megatron-to-hf-mode --metadata-key
--model-name --n-samples-per-prompt --num-gpus-per-node --num-rollout --observe-training-entropy
--offload-train-target --over-sampling-batch-size --pin-rollout-manager-to-head --prompt-data --ref-load
--rollout-batch-size --rollout-function-path --rollout-max-response-len --rollout-num-gpus-per-engine
--rollout-seed --rollout-shuffle --rollout-temperature --router-assignment-mode --save-trigger-sentinel
--session-server-port --sglang-router-policy --start-rollout-id --tito-model --use-kl-loss --use-miles-dashboard
--use-rollout-routing-replay --use-session-server --use-tensorboard --use-tis --use-wandb --wandb-dir --wandb-group
--wandb-mode --wandb-team
"""
# The model's, as Miles gives them for Inkling-Small.
MODEL = """
--num-layers 42 --hidden-size 4096 --ffn-hidden-size 2048 --num-attention-heads 32 --group-query-attention
--num-query-groups 8 --kv-channels 128 --normalization RMSNorm --norm-epsilon 1e-6 --swiglu
--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 201024 --position-embedding-type none
--no-rope-fusion --no-masked-softmax-fusion --max-position-embeddings 1048576 --num-experts 256
--moe-ffn-hidden-size 2048 --moe-router-topk 6 --moe-shared-expert-intermediate-size 2048
--moe-router-pre-softmax --moe-router-score-function sigmoid --moe-router-enable-expert-bias
--moe-router-load-balancing-type seq_aux_loss --moe-token-dispatcher-type alltoall --moe-aux-loss-coeff 0
--moe-grouped-gemm --qk-layernorm
"""
# Read by Miles alone.
MILES_READS = ["MILES_EXPERIMENTAL_ROLLOUT_REFACTOR", "MILES_SGLANG_DUMMY_LOAD"]


@pytest.fixture(scope="module")
def neighbours() -> Sources:
    """The packages of pins/neighbours.txt, unpacked below .cache/ once for each content of that file."""
    pinned = PINNED.read_text()
    folder = PROJECT_ROOT / ".cache" / "neighbours" / hashlib.sha256(pinned.encode()).hexdigest()[:12]
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        install(part)
        part.rename(folder)
    versions = dict(line.split()[0].split("==") for line in pinned.splitlines() if line[0] != "#")
    names = {"megatron": "megatron-core", "sglang": "sglang"}
    return Sources(
        {name: Source(f"neighbour {one} {versions[one]}: ", folder) for name, one in names.items()}
    )


def install(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location("bootstrap", PROJECT_ROOT / "tools" / "bootstrap.py")
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    # The files are those for the image's machines, whatever this one is: they are read, not run.
    command = f"pip install --quiet --no-deps --require-hashes --only-binary :all: --python {sys.executable}"
    platform = "--python-version 3.12 --python-platform x86_64-manylinux_2_34"
    done = subprocess.run(
        [
            bootstrap.find_uv(),
            *command.split(),
            *platform.split(),
            "--target",
            folder,
            "--requirements",
            PINNED,
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode and any(one in done.stderr for one in UNREACHABLE):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1].strip()}")
    assert done.returncode == 0, done.stderr


@pytest.fixture(
    params=[("camel", 6), ("camel", 8), ("terminus-2", 7)], ids=lambda one: "-".join(map(str, one))
)
def job(request, tmp_path):
    """The flags and the environment of a production job."""
    agent, nodes = request.param
    words = f"ENGINE=miles AGENT={agent} NUM_NODES={nodes} HEAD_IP=10.0.0.1 SANDBOX_BACKEND=docker"
    paths = [f"TASKS_DIR={tmp_path}", f"PROMPT_DATA={tmp_path}/prompts.jsonl", f"RUNS_ROOT={tmp_path}"]
    settings = resolve.load(None, [*words.split(), *paths])
    run_dir = tmp_path / "run"
    return flags(settings, run_dir), environment(settings, "http://10.0.0.1:11000", run_dir)


def model_flags() -> list[Flag]:
    parts = [part.split() for part in f" {MODEL}".replace("\n", " ").split(" --")[1:]]
    return [Flag(f"--{name}", tuple(values), "the model") for name, *values in parts]


def test_the_neighbours_take_every_flag_that_is_theirs_and_read_every_variable(neighbours, job):
    given, variables = job
    lines = list(check.contract(neighbours, [*given, *model_flags()], variables))
    print(*lines, sep="\n")
    assert [str(line) for line in lines if line.bad] == []
    unknown = {
        line.name.split()[1] for line in lines if line.status == "skip" and line.name.startswith("flag")
    }
    assert unknown <= set(OWN.split())
    known = [line for line in lines if line.status == "ok" and line.name.startswith("flag")]
    assert all(line.facts["where"].startswith("neighbour ") for line in known)
    assert not {line.name.split()[1] for line in known} & set(OWN.split())
    unread = [line.name.split()[1] for line in lines if line.status == "skip" and line.name.startswith("var")]
    assert set(unread) <= {*MILES_READS, *DOUBTFUL}


def test_a_value_that_the_neighbours_would_refuse_is_a_drift(neighbours):
    wrong = ["--sglang-attention-backend fa9", "--lr-decay-style steady", "--recompute-method all"]
    given = [Flag(one.split()[0], (one.split()[1],), "a test") for one in wrong]
    lines = check.contract(neighbours, given, {})
    assert [line.status for line in lines if line.name.startswith("flag")] == ["DRIFT"] * 3
