"""Which Megatron tensors each tensor of Inkling's Hugging Face checkpoint is made of, as one table.

Source: miles_plugins/models/inkling/layers.py (names and splits of the shards), miles_plugins/mbridge/inkling.py
and miles/backends/megatron_utils/megatron_to_hf/inkling.py (both directions of the naming) of Miles at 80a25cb,
and the sharded_state_dict methods of Megatron-LM at c0b2836.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType

from recipe.errors import BadInputError

Shape = tuple[int, ...]
Index = tuple[int | slice | EllipsisType, ...]

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


@dataclass(frozen=True)
class Piece:
    """A part [start, start + sizes) of the tensor `key`, and where in the Hugging Face tensor it goes."""

    key: str
    start: Shape
    sizes: Shape
    index: Index


def pieces(name: str, shape: Shape, found: Mapping[str, Shape]) -> list[Piece] | None:
    """What tensor `name` is made of, given the checkpoint's tensors by key; None when training never touched it.

    Raises BadInputError when the checkpoint lacks a tensor, or has one of another shape.
    """
    if not name.startswith(TEXT):
        return None
    layer = re.search(r"\.layers\.(\d+)\.", name)
    number = layer[1] if layer else ""
    rules = TABLE.get(name.replace(f".layers.{number}.", f".layers.{LAYER}."), ())
    keys = {rule: [key.replace(LAYER, number) for key in _every_key(rule, shape)] for rule in rules}
    if not keys:
        raise BadInputError("the base has a tensor that this recipe does not know", found=name)
    rule = next((rule for rule, named in keys.items() if all(key in found for key in named)), None)
    if rule is None:
        expected = " or ".join(", ".join(named) for named in keys.values())
        raise BadInputError(f"the checkpoint has no weights for {name}", expected=expected)
    made = [piece for whole in _placed(rule, keys[rule], shape, found) for piece in _halves(rule, whole)]
    covered = sum(math.prod(piece.sizes) for piece in made)
    if covered != math.prod(shape):
        raise BadInputError(
            f"the checkpoint has another shape for {name}",
            expected=shape,
            found={key: found[key] for key in keys[rule]},
        )
    return made


def _every_key(rule: Rule, shape: Shape) -> list[str]:
    if PART not in rule.keys[0]:
        return list(rule.keys)
    return [rule.keys[0].replace(PART, str(part)) for part in range(shape[0])]


def _placed(rule: Rule, keys: list[str], shape: Shape, found: Mapping[str, Shape]) -> Iterator[Piece]:
    row = 0
    index: Index
    for part, key in enumerate(keys):
        sizes = found[key]
        if PART in rule.keys[0]:
            target, index = shape[1:], (part,)
        elif len(keys) > 1:
            target, index = (sizes[0], *shape[1:]), (slice(row, row + sizes[0]),)
            row += sizes[0]
        else:
            target, index = shape, ()
        if rule.padded and len(sizes) == len(shape) and sizes[0] >= shape[0]:
            sizes = (shape[0], *sizes[1:])
        # A scale is a scalar in one of them, a vector of one in the other.
        if [size for size in sizes if size != 1] != [size for size in target if size != 1]:
            raise BadInputError(f"the checkpoint has another shape for {key}", expected=target, found=sizes)
        yield Piece(key, (0,) * len(sizes), sizes, index)


def _halves(rule: Rule, whole: Piece) -> Iterator[Piece]:
    if not rule.gated:
        yield whole
        return
    *outer, rows, width = whole.sizes
    for half in range(2):
        start = (*(0 for _ in outer), half * (rows // 2), 0)
        index = (*whole.index, ..., slice(half, None, 2), slice(None))
        yield Piece(whole.key, start, (*outer, rows // 2, width), index)
