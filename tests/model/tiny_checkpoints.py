"""Tiny stand-ins: an Inkling in Hugging Face format, and Megatron's torch_dist checkpoint of its weights.

The checkpoint is written from the Hugging Face names by hand, not by the exporter's table: as Miles' converter
names and cuts the tensors, each sharded as tensor parallelism 2 and expert parallelism would leave it.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Self

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from transformers import InklingConfig, InklingForConditionalGeneration

VOCABULARY, PADDED, EXPERTS, SHARED, TP = 64, 72, 4, 2, 2


def config(width: int = 16, expert_width: int = 16, experts: int = EXPERTS) -> InklingConfig:
    text = {
        "vocab_size": VOCABULARY, "hidden_size": width, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
        "swa_head_dim": 8, "sliding_window_size": 8, "d_rel": 4, "rel_extent": 16, "intermediate_size": 24,
        "moe_intermediate_size": expert_width, "n_routed_experts": experts, "num_experts_per_tok": 2,
        "n_shared_experts": SHARED, "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"], "logits_mup_width_multiplier": 2.0,
        "route_scale": 1.0, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    return InklingConfig(
        text_config=text,
        # As many layers as scales: with fewer, transformers wants scipy.
        vision_config={"patch_size": 2, "temporal_patch_size": 2, "num_hidden_layers": 3},
        audio_config={"n_mel_bins": 4, "mel_vocab_size": 8},
        image_token_id=60,
        audio_token_id=61,
        image_bos_token_id=62,
        audio_bos_token_id=63,
    )


def build(seed: int, **sizes: int) -> InklingForConditionalGeneration:
    torch.manual_seed(seed)
    model = InklingForConditionalGeneration(config(**sizes)).to(torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in (*model.parameters(), *model.buffers()):
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter) * 0.05)  # else norms and scales are all alike
    return model


def save_base(model: InklingForConditionalGeneration, path: Path) -> Path:
    """In two shards, with a tensor of multi-token prediction and a tokenizer."""
    model.save_pretrained(path, max_shard_size="30KB")
    extra = {"model.mtp.layers.0.eh_proj.weight": torch.randn(4, 8, dtype=torch.bfloat16)}
    save_file(extra, path / "mtp.safetensors", metadata={"format": "pt"})
    _list(path, extra, "mtp.safetensors")
    (path / "tokenizer.json").write_text('{"stand": "in"}')
    return path


def _list(path: Path, tensors: dict[str, Tensor], file: str) -> None:
    index = path / "model.safetensors.index.json"
    found = json.loads(index.read_text())
    found["weight_map"] |= dict.fromkeys(tensors, file)
    index.write_text(json.dumps(found))


def weights(path: Path) -> dict[str, Tensor]:
    return {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}


class _Chunks(torch.Tensor):
    """One tensor as several ranks hold it."""

    def __new__(cls, whole: Tensor, chunks: list[tuple[int, ...]]) -> Self:
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape)

    def __init__(self, whole: Tensor, chunks: list[tuple[int, ...]]) -> None:
        self.whole, self.chunks = whole, chunks  # each chunk: offsets, then sizes

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)

    def __create_write_items__(self, name: str, _tensor: Tensor) -> list[WriteItem]:
        properties, rank = TensorProperties.create_from_tensor(self.whole), self.whole.dim()
        return [
            WriteItem(
                index=MetadataIndex(name, torch.Size(chunk[:rank])),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(chunk[:rank]), torch.Size(chunk[rank:])),
                    properties=properties,
                    size=self.whole.shape,
                ),
            )
            for chunk in self.chunks
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        rank = self.whole.dim()
        chunk = next(chunk for chunk in self.chunks if chunk[:rank] == tuple(index.offset))
        pairs = zip(chunk[:rank], chunk[rank:], strict=True)
        return self.whole[tuple(slice(start, start + size) for start, size in pairs)].clone()


def _cut(whole: Tensor, axes: dict[int, int]) -> _Chunks:
    """Cut into equal parts: how many, by axis."""
    chunks: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
    for axis, size in enumerate(whole.shape):
        part = size // axes.get(axis, 1)
        chunks = [((*o, start), (*s, part)) for o, s in chunks for start in range(0, size, part)]
    return _Chunks(whole, [(*offsets, *sizes) for offsets, sizes in chunks])


def _apart(w13: Tensor) -> Tensor:
    """The gate's rows, then those of the up projection."""
    return torch.cat([w13[..., 0::2, :], w13[..., 1::2, :]], dim=-2)


def megatron(hf: dict[str, Tensor], layers: int = 3) -> dict[str, object]:
    """Megatron's sharded tensors by key."""
    tall = {"embed": "embedding.word_embeddings", "unembed": "output_layer"}
    found: dict[str, object] = {
        "embedding.embed_norm.weight": hf["model.llm.embed_norm.weight"],
        "decoder.final_layernorm.weight": hf["model.llm.norm.weight"],
    }
    for short, key in tall.items():
        rows = hf[f"model.llm.{short}.weight"]
        padding = torch.full((PADDED - VOCABULARY, rows.shape[1]), 7.0, dtype=rows.dtype)
        found[f"{key}.weight"] = _cut(torch.cat([rows, padding]), {0: TP})
    for layer in range(layers):
        found |= _layer(f"decoder.layers.{layer}.", f"model.llm.layers.{layer}.", hf)
    return found


def _layer(key: str, name: str, hf: dict[str, Tensor]) -> dict[str, object]:
    attention, qkv = f"{key}self_attention.", f"{key}self_attention.linear_qkv."
    found: dict[str, object] = {
        f"{qkv}layer_norm_weight": hf[f"{name}attn_norm.weight"],
        f"{attention}linear_proj.weight": _cut(hf[f"{name}attn.wo_ud.weight"], {1: TP}),
        f"{attention}q_norm.weight": hf[f"{name}attn.q_norm.weight"],
        f"{attention}k_norm.weight": hf[f"{name}attn.k_norm.weight"],
        f"{attention}rel_proj": hf[f"{name}attn.rel_logits_proj.proj"],
        f"{attention}k_sconv.weight": _cut(hf[f"{name}attn.k_sconv.weight"], {0: TP}),
        f"{attention}v_sconv.weight": _cut(hf[f"{name}attn.v_sconv.weight"], {0: TP}),
        f"{attention}attn_sconv.weight": hf[f"{name}attn_sconv.weight"],
        f"{key}mlp.mlp_sconv.weight": hf[f"{name}mlp_sconv.weight"],
        f"{qkv}_extra_state/shard_0_1": io.BytesIO(b"of Transformer Engine"),
    }
    for part, short in zip("qkvr", ("wq_du", "wk_dv", "wv_dv", "wr_du"), strict=True):
        found[f"{qkv}weight.{part}"] = _cut(hf[f"{name}attn.{short}.weight"], {0: TP})
    if f"{name}mlp.w13_dn.weight" in hf:
        return found | {
            f"{key}mlp.linear_fc1.layer_norm_weight": hf[f"{name}mlp_norm.weight"],
            f"{key}mlp.linear_fc1.weight": _cut(_apart(hf[f"{name}mlp.w13_dn.weight"]), {0: 2 * TP}),
            f"{key}mlp.linear_fc2.weight": _cut(hf[f"{name}mlp.w2_md.weight"], {1: TP}),
            f"{key}mlp.global_scale": hf[f"{name}mlp.global_scale"],
        }
    gate, w13 = hf[f"{name}mlp.gate.weight"], _apart(hf[f"{name}mlp.experts.w13_weight"])
    experts = w13.shape[0]
    found |= {
        f"{key}pre_mlp_layernorm.weight": hf[f"{name}mlp_norm.weight"],
        f"{key}mlp.router.weight": gate[:experts].clone(),
        f"{key}mlp.router.shared_gate": gate[experts:].clone(),
        f"{key}mlp.router.expert_bias": hf[f"{name}mlp.gate.bias"].float(),
        f"{key}mlp.router.global_scale": hf[f"{name}mlp.gate.global_scale"].float(),
        f"{key}mlp.experts.experts.linear_fc1.weight": _cut(w13, {0: experts, 1: 2}),
        f"{key}mlp.experts.experts.linear_fc2.weight": _cut(hf[f"{name}mlp.experts.w2_weight"], {0: experts}),
    }
    for part in range(SHARED):
        shared = f"{key}mlp.shared_experts.experts.{part}."
        w13 = _apart(hf[f"{name}mlp.shared_experts.shared_w13_weight"][part])
        w2 = hf[f"{name}mlp.shared_experts.shared_w2_weight"][part]
        found |= {f"{shared}linear_fc1.weight": _cut(w13, {0: 2 * TP})}
        found |= {f"{shared}linear_fc2.weight": _cut(w2, {1: TP})}
    return found


def save_torch_dist(hf: dict[str, Tensor], run: Path, iteration: int = 2) -> Path:
    """RUN/checkpoints/iter_N, in several files, with the tracker file."""
    path = run / "checkpoints" / f"iter_{iteration:07d}"
    dcp.save(
        megatron(hf),
        storage_writer=dcp.FileSystemWriter(path, thread_count=4),
        planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        no_dist=True,
    )
    (path.parent / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    return path
