"""TRL's GRPOTrainer on samples that were made elsewhere, through its experimental `rollout_func`.

Importing this module needs TRL. Its loss type "grpo" with `delta` is the loss of `recipe.engines.local.grpo`
without importance sampling, which TRL has for vLLM only.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import InklingForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from benchmarks.measure import Clock, Seconds, Steps
from benchmarks.samples import BenchmarkSample
from recipe.algorithm import GRPO
from recipe.engines.local.model import build_model, tiny_config
from recipe.engines.local.vocabulary import FIRST_UNDECODABLE_ID, VOCAB_ROWS

# Faster than 8 by a tenth, measured.
MICRO_BATCH = 2
# The reference pass runs, and the KL is observed, only when it has a coefficient.
OBSERVED_ONLY = 1e-9


def trl_steps(
    model: InklingForCausalLM,
    group: Sequence[BenchmarkSample],
    learning_rate: float,
    steps: int,
    *,
    before_each: Callable[[], object],
) -> Steps:
    """Takes `steps` steps on `group` from the weights of `model`, calling `before_each` before each one."""
    logging.disable_progress_bar()
    stopwatch = _Stopwatch(before_each)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = GRPOTrainer(
            model=_for_trl(model, Path(folder) / "model"),
            reward_funcs=[_given_reward],
            args=_config(Path(folder) / "output", len(group), learning_rate, steps),
            train_dataset=Dataset.from_dict({"prompt": [""]}),
            processing_class=_tokenizer(),
            rollout_func=_rollout(group),
            callbacks=[stopwatch],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        logged = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    return Steps(stopwatch.seconds, logged)


def _for_trl(model: InklingForCausalLM, folder: Path) -> InklingForCausalLM:
    """A copy of `model` in the form that gives TRL the same log-probabilities, saved for its reference too."""
    # TRL's head would count the padding rows in the softmax, and knows the scale by another name.
    config = tiny_config(FIRST_UNDECODABLE_ID)
    config.logit_scale = 1 / config.logits_mup_width_multiplier
    copied = build_model(config)
    weights = model.state_dict()
    copied.load_state_dict(
        {
            name: value[:FIRST_UNDECODABLE_ID] if value.shape[:1] == (VOCAB_ROWS,) else value
            for name, value in weights.items()
        }
    )
    copied.save_pretrained(folder)
    copied.config._name_or_path = str(folder)
    return copied


def _config(output: Path, samples: int, learning_rate: float, steps: int) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(output),
        max_steps=steps,
        num_generations=samples,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=samples // MICRO_BATCH,
        loss_type="grpo",
        epsilon=GRPO.clip_low,
        epsilon_high=GRPO.clip_high,
        delta=GRPO.clip_dual,
        beta=OBSERVED_ONLY,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=GRPO.adam_beta1,
        adam_beta2=GRPO.adam_beta2,
        adam_epsilon=GRPO.adam_epsilon,
        weight_decay=GRPO.weight_decay,
        max_grad_norm=GRPO.gradient_clip,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    """TRL asks for one; all ids come from the samples."""
    special = {"pad_token": "<pad>", "eos_token": "<eos>"}
    words = Tokenizer(models.WordLevel({text: index for index, text in enumerate(special.values())}))
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def _rollout(group: Sequence[BenchmarkSample]) -> Callable[[list[str], GRPOTrainer], dict[str, list[Any]]]:
    def rollout(_prompts: list[str], _trainer: GRPOTrainer) -> dict[str, list[Any]]:
        return {
            "prompt_ids": [one.sample.ids[: one.prompt_length] for one in group],
            "completion_ids": [one.sample.ids[one.prompt_length :] for one in group],
            "logprobs": [one.sample.logprobs[one.prompt_length :] for one in group],
            "env_mask": [one.sample.loss_mask[one.prompt_length :] for one in group],
            "given_reward": [one.sample.reward for one in group],
        }

    return rollout


def _given_reward(given_reward: list[float], **_: Any) -> list[float]:
    return given_reward


class _Stopwatch(TrainerCallback):
    def __init__(self, before_each: Callable[[], object]) -> None:
        self._before_each = before_each
        self.seconds: list[Seconds] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._before_each()
        self._clock = Clock()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(self._clock.read())
