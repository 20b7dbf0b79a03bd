"""The GRPO of this project as numbers: both engines read it here, so that they can't drift apart.

The values are the production recipe's; those marked "Miles' default" are what Miles at the pinned commit uses
when its flag is not given.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """Advantages, loss, corrections and optimizer of one GRPO step."""

    # DAPO's clip-higher (arXiv 2503.14476): a wider upper bound keeps the entropy from collapsing.
    clip_low: float = 0.2
    clip_high: float = 0.28
    # Dual clip (arXiv 1912.09729): bounds the loss of a sample with a negative advantage and a large ratio.
    clip_dual: float = 3.0
    # Truncated importance sampling between the engine's and the trainer's probabilities; Miles' default cap.
    importance_cap: float = 2.0
    # Miles' default: keeps a group without spread from dividing by zero.
    advantage_epsilon: float = 1e-6
    # The log-probability differences are clamped before exp (Miles' constants), the KL estimate after it.
    log_ratio_bound: float = 20.0
    kl_bound: float = 10.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    # Megatron's default.
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.1
    # Megatron's default: the global norm of the gradient.
    gradient_clip: float = 1.0
    # The thinking effort of every prompt: the template's own, since no agent asks for another.
    thinking_effort: float = 0.9


GRPO = Algorithm()
