"""A tiny Inkling of the real architecture: its configuration, how it is built, and its output head.

Real: `transformers`' InklingForCausalLM, hybrid and sliding attention with relative position profiles, short
convolutions, a dense first layer, routed and shared experts, the 201024-row vocabulary. Tiny: 3 layers of
width 32 (about 13 million parameters, nearly all of them vocabulary rows).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from transformers import InklingForCausalLM, InklingTextConfig

from recipe.engines.local.vocabulary import FIRST_UNDECODABLE_ID, VOCAB_ROWS

LAYERS = 3
WIDTH = 32
HEAD_WIDTH = 16
EXPERTS = 8
EXPERTS_PER_TOKEN = 2
# One window for the sliding layers and for the position profiles: a trial of the smoke tasks fits into it.
WINDOW = 512
# Scales the head up; with 1.0 the warm start leaves 14 to 84 % malformed turns, with 0.25 under 5 % (measured).
LOGITS_DIVISOR = 0.25


def tiny_config(vocab_rows: int = VOCAB_ROWS) -> InklingTextConfig:
    """The tiny model's configuration; `vocab_rows` smaller than the real vocabulary is for the warm start."""
    config = InklingTextConfig(
        vocab_size=vocab_rows,
        unpadded_vocab_size=FIRST_UNDECODABLE_ID if vocab_rows == VOCAB_ROWS else None,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=HEAD_WIDTH,
        swa_num_attention_heads=2,
        swa_num_key_value_heads=1,
        swa_head_dim=HEAD_WIDTH,
        sliding_window_size=WINDOW,
        rel_extent=WINDOW,
        d_rel=8,
        max_position_embeddings=32768,
        intermediate_size=2 * WIDTH,
        moe_intermediate_size=WIDTH,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=EXPERTS_PER_TOKEN,
        n_shared_experts=1,
        mlp_layer_types=["dense", "sparse", "sparse"],
        layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding"],
        route_scale=1.0,
        logits_mup_width_multiplier=LOGITS_DIVISOR,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    config._attn_implementation = "eager"
    config._experts_implementation = "grouped_mm"
    return config


def build_model(config: InklingTextConfig, seed: int = 0) -> InklingForCausalLM:
    """A freshly initialised float32 model. The scales of experts and router stay fixed, as Miles freezes them."""
    torch.manual_seed(seed)
    model: InklingForCausalLM = InklingForCausalLM(config).float()
    model.eval()
    for name, parameter in model.named_parameters():
        if name.endswith("global_scale"):
            parameter.requires_grad_(False)
    return model


@torch.no_grad()
def load_weights(model: InklingForCausalLM, weights: Mapping[str, np.ndarray]) -> None:
    """Copies `weights`, which has an array for every parameter, into `model`."""
    for name, parameter in model.named_parameters():
        parameter.copy_(torch.tensor(weights[name]))


def scaled_hidden(model: InklingForCausalLM, ids: Tensor) -> Tensor:
    """Hidden states ready for the head, [batch, length, width], of right-padded `ids` [batch, length]."""
    hidden: Tensor = model.model(input_ids=ids, use_cache=False).last_hidden_state
    return hidden / model.config.logits_mup_width_multiplier


def output_head(model: InklingForCausalLM) -> Tensor:
    """The head's rows of ids that the tokenizer can decode, [rows, width]: the others are never sampled."""
    head: Tensor = model.lm_head.weight
    return head[: model.config.unpadded_vocab_size]
