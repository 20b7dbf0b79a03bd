"""Which Megatron tensors each tensor of Inkling's Hugging Face checkpoint is made of, as one table.

Source: miles_plugins/models/inkling/layers.py (names and splits of the shards), miles_plugins/mbridge/inkling.py
and miles/backends/megatron_utils/megatron_to_hf/inkling.py (both directions of the naming) of Miles at 80a25cb,
and the sharded_state_dict methods of Megatron-LM at c0b2836.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from recipe.errors import BadInputError

Shape = tuple[int, ...]

LAYER, PART = "{layer}", "{part}"
HF = f"model.llm.layers.{LAYER}."
MEGATRON = f"decoder.layers.{LAYER}."
TEXT = "model.llm."  # what training touches; vision, audio and multi-token prediction lie elsewhere


@dataclass(frozen=True)
class Rule:
    """How one tensor is put together.

    The tensors of `keys` follow one another in dimension 0; a key with {part} stands for one tensor for each row
    of dimension 0. `gated`: in dimension -2, Megatron has the gate's rows before the up projection's, Hugging
    Face has them in turn. `padded`: Megatron may have further rows, which stand for no token.
    """

    keys: tuple[str, ...]
    gated: bool = False
    padded: bool = False


def _rule(*keys: str, gated: bool = False) -> tuple[Rule, ...]:
    return (Rule(tuple(MEGATRON + key for key in keys), gated=gated),)


# Of several rules, the one holds whose keys are there: the norm before a dense MLP is part of its first matrix.
TABLE: dict[str, tuple[Rule, ...]] = {
    "model.llm.embed.weight": (Rule(("embedding.word_embeddings.weight",), padded=True),),
    "model.llm.embed_norm.weight": (Rule(("embedding.embed_norm.weight",)),),
    "model.llm.norm.weight": (Rule(("decoder.final_layernorm.weight",)),),
    "model.llm.unembed.weight": (Rule(("output_layer.weight",), padded=True),),
    HF + "attn_norm.weight": _rule("self_attention.linear_qkv.layer_norm_weight"),
    HF + "attn.wq_du.weight": _rule("self_attention.linear_qkv.weight.q"),
    HF + "attn.wk_dv.weight": _rule("self_attention.linear_qkv.weight.k"),
    HF + "attn.wv_dv.weight": _rule("self_attention.linear_qkv.weight.v"),
    HF + "attn.wr_du.weight": _rule("self_attention.linear_qkv.weight.r"),
    HF + "attn.wo_ud.weight": _rule("self_attention.linear_proj.weight"),
    HF + "attn.q_norm.weight": _rule("self_attention.q_norm.weight"),
    HF + "attn.k_norm.weight": _rule("self_attention.k_norm.weight"),
    HF + "attn.rel_logits_proj.proj": _rule("self_attention.rel_proj"),
    HF + "attn.k_sconv.weight": _rule("self_attention.k_sconv.weight"),
    HF + "attn.v_sconv.weight": _rule("self_attention.v_sconv.weight"),
    HF + "attn_sconv.weight": _rule("self_attention.attn_sconv.weight"),
    HF + "mlp_norm.weight": _rule("pre_mlp_layernorm.weight") + _rule("mlp.linear_fc1.layer_norm_weight"),
    HF + "mlp_sconv.weight": _rule("mlp.mlp_sconv.weight"),
    HF + "mlp.w13_dn.weight": _rule("mlp.linear_fc1.weight", gated=True),
    HF + "mlp.w2_md.weight": _rule("mlp.linear_fc2.weight"),
    HF + "mlp.global_scale": _rule("mlp.global_scale"),
    HF + "mlp.gate.weight": _rule("mlp.router.weight", "mlp.router.shared_gate"),
    HF + "mlp.gate.bias": _rule("mlp.router.expert_bias"),
    HF + "mlp.gate.global_scale": _rule("mlp.router.global_scale"),
    HF + "mlp.experts.w13_weight": _rule("mlp.experts.experts.linear_fc1.weight", gated=True),
    HF + "mlp.experts.w2_weight": _rule("mlp.experts.experts.linear_fc2.weight"),
    HF + "mlp.shared_experts.shared_w13_weight": _rule(
        f"mlp.shared_experts.experts.{PART}.linear_fc1.weight", gated=True
    ),
    HF + "mlp.shared_experts.shared_w2_weight": _rule(f"mlp.shared_experts.experts.{PART}.linear_fc2.weight"),
}


def made_of(name: str, shape: Shape, found: Container[str]) -> tuple[Rule, list[str]]:
    """The rule for tensor `name` and the keys, of those `found` in the checkpoint, that it takes.

    Raises BadInputError for a tensor that is not in the table, or whose weights the checkpoint lacks.
    """
    layer = re.search(r"\.layers\.(\d+)\.", name)
    number = layer[1] if layer else ""
    rules = TABLE.get(name.replace(f".layers.{number}.", f".layers.{LAYER}."), ())
    keys = {
        rule: [
            key.replace(LAYER, number).replace(PART, str(part))
            for key in rule.keys
            for part in range(shape[0] if PART in key else 1)
        ]
        for rule in rules
    }
    if not keys:
        raise BadInputError("the base has a tensor that this recipe does not know", found=name)
    for rule, named in keys.items():
        if all(key in found for key in named):
            return rule, named
    expected = " or ".join(", ".join(named) for named in keys.values())
    raise BadInputError(f"the checkpoint has no weights for {name}", expected=expected)


def assembled(name: str, rule: Rule, parts: Mapping[str, Tensor], shape: Shape) -> Tensor:
    """Tensor `name`, made of its `parts` in order. Raises BadInputError when they have another shape."""
    tensors = list(parts.values())
    try:
        whole = torch.stack(tensors) if PART in rule.keys[0] else tensors[0]
        if len(rule.keys) > 1:
            whole = torch.cat(tensors)
        if rule.padded:
            whole = whole[: shape[0]]
        if rule.gated:
            whole = whole.unflatten(-2, (2, -1)).transpose(-3, -2).flatten(-3, -2)
    except (RuntimeError, IndexError):
        whole = tensors[0].new_empty(0)
    # A scale is a scalar in one of them, a vector of one in the other.
    if [size for size in whole.shape if size != 1] != [size for size in shape if size != 1]:
        found = {key: tuple(part.shape) for key, part in parts.items()}
        raise BadInputError(f"the checkpoint has another shape for {name}", expected=shape, found=found)
    return whole.reshape(shape)
