"""Seconds per training step: our Trainer beside TRL's GRPOTrainer, same model, samples and observed values.

Both take the same steps from the same weights; that they do is shown by the first gradient's norm.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from transformers import InklingForCausalLM

from benchmarks.measure import Clock, Findings, Row, Steps, median
from benchmarks.samples import BenchmarkSample, one_group
from recipe.engines.local.model import build_model, tiny_config
from recipe.engines.local.trainer import Trainer

# One group: a step of TRL takes eight seconds.
SAMPLES = 8
SUBJECT = f"training step, {SAMPLES} samples"
STEPS, QUICK_STEPS = 3, 1
LEARNING_RATE = 1e-3
GOAL = 20.0
# TRL adds 1e-4 to a group's standard deviation and ours 1e-6; all else is to be equal.
SAME_NORM = 1e-3


def run(*, quick: bool) -> Findings:
    """Our seconds, TRL's where it is installed, and both sides' first gradient norm."""
    torch.set_num_threads(1)
    model = build_model(tiny_config())
    group = one_group(model, SAMPLES)
    ours, step = our_steps(model, group)
    count = QUICK_STEPS if quick else STEPS
    findings = Findings("Training", against="TRL")
    try:
        from benchmarks.trl_trainer import trl_steps
    except ModuleNotFoundError as error:
        for _ in range(count):
            step()
        findings.rows.append(Row(SUBJECT, "s", median(ours.seconds).cpu))
        findings.notes.append(f"TRL not run: {error} (it is in the dependency group `bench`)")
        return findings
    trl = trl_steps(model, group, LEARNING_RATE, count, before_each=step)
    findings.rows = _rows(ours, trl)
    findings.notes = _notes(ours, trl, group)
    return findings


def our_steps(
    model: InklingForCausalLM, group: Sequence[BenchmarkSample]
) -> tuple[Steps, Callable[[], None]]:
    """Our side's record, empty, and the function that takes a step on `group` and adds to it."""
    trainer = Trainer(copy.deepcopy(model), LEARNING_RATE)
    samples = [one.sample for one in group]
    steps = Steps()

    def step() -> None:
        clock = Clock()
        steps.observed.append(trainer.step(samples))
        steps.seconds.append(clock.read())

    return steps, step


def _rows(ours: Steps, trl: Steps) -> list[Row]:
    mine, theirs = median(ours.seconds).cpu, median(trl.seconds).cpu
    return [
        Row(SUBJECT, "s", mine, theirs, theirs / mine, goal=f"{GOAL:g}x", met=theirs / mine >= GOAL),
        Row(
            "  first gradient norm",
            "",
            ours.first_norm,
            trl.first_norm,
            goal="the same",
            met=abs(ours.first_norm / trl.first_norm - 1) < SAME_NORM,
        ),
    ]


def _notes(ours: Steps, trl: Steps, group: Sequence[BenchmarkSample]) -> list[str]:
    tokens = sum(len(one.sample.ids) for one in group) / len(group)
    trained = sum(one.sample.trained_tokens for one in group) / len(group)
    return [
        f"Seconds of CPU (one thread), {len(trl.seconds)} step(s); by the wall clock "
        f"{median(ours.seconds).wall:.1f} and {median(trl.seconds).wall:.1f} s.",
        f"One group of {len(group)} samples as of a smoke task: {tokens:.0f} tokens each, {trained:.0f} of "
        "them trained; few, because of TRL's time. Either side: reference pass, KL and entropy observed, "
        "forward, backward, AdamW. Only ours: routing replay and truncated importance sampling.",
        "TRL at its best here: two samples a forward, no gradient checkpointing, float32, our threads and "
        "allocator. On a CPU it scores every position, not only the trained ones.",
    ]
