"""Keys, values and convolution states of the sequences that are decoded together.

Rows are right-aligned: every row writes its next token at the same column, since Inkling's attention takes one
query position for the whole batch and its position bias depends on distances only. A row that joins or leaves
costs one copy. The class offers what InklingTextModel asks of a cache; masks are made here, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import InklingTextConfig

HIDDEN_FROM = torch.finfo(torch.float32).min


@dataclass
class Row:
    """The state of one sequence: `length` tokens in it, per layer keys and values [heads, length, width] and
    convolution states [channels, kernel], the router's choices [length, sparse layers, k], and the hidden state
    [width] that predicts the next token."""

    length: int
    keys: list[Tensor]
    values: list[Tensor]
    convolutions: list[list[Tensor]]
    routes: Tensor
    hidden: Tensor | None = None


@dataclass
class ServingCache:
    """State of up to `capacity` rows of up to `columns` tokens; `rows` of them are in use."""

    config: InklingTextConfig
    capacity: int
    columns: int
    rows: int = 0
    column: int = 0
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.config
        self.keys, self.values, self.convolutions = [], [], []
        for kind in config.layer_types or ():
            sliding = kind == "hybrid_sliding"
            heads = config.swa_num_key_value_heads if sliding else config.num_key_value_heads
            width = config.swa_head_dim if sliding else config.head_dim
            self.keys.append(torch.zeros(self.capacity, heads, self.columns, width))
            self.values.append(torch.zeros(self.capacity, heads, self.columns, width))
            channels = (heads * width, heads * width, config.hidden_size, config.hidden_size)
            kernel = config.conv_kernel_size
            self.convolutions.append([torch.zeros(self.capacity, size, kernel) for size in channels])

    @property
    def first(self) -> int:
        """The first column that any row uses."""
        return self.column - max(self.lengths, default=0)

    # What the model asks of a cache.

    def get_mask_sizes(self, query_length: int, _layer: int) -> tuple[int, int]:
        return self.column + query_length - self.first, self.first

    def get_query_offset(self, _layer: int) -> int:
        return self.column

    def get_seq_length(self) -> int:
        return self.column

    def is_recording_past(self, _layer: int) -> bool:
        return False

    def update(self, keys: Tensor, values: Tensor, layer: int, **_unused: object) -> tuple[Tensor, Tensor]:
        end = self.column + keys.shape[2]
        self.keys[layer][: self.rows, :, self.column : end] = keys
        self.values[layer][: self.rows, :, self.column : end] = values
        window = slice(self.first, end)
        return self.keys[layer][: self.rows, :, window], self.values[layer][: self.rows, :, window]

    def get_conv_state(self, layer: int, state_idx: int) -> Tensor:
        return self.convolutions[layer][state_idx][: self.rows]

    def update_conv_state(self, states: Tensor, layer: int, state_idx: int, conv_kernel_size: int) -> Tensor:
        stored = self.get_conv_state(layer, state_idx)
        full = torch.cat([stored, states], dim=-1)
        stored.copy_(full[..., -conv_kernel_size:])
        return full

    # What the engine does with rows.

    def masks(self, queries: int) -> dict[str, Tensor | None]:
        """Additive masks [rows, 1, queries, visible columns] for the next forward of `queries` tokens a row."""
        query = torch.arange(self.column, self.column + queries)[:, None]
        key = torch.arange(self.first, self.column + queries)[None, :]
        starts = self.column - torch.tensor(self.lengths)
        hidden = (key > query) | (key < starts[:, None, None])
        too_far = query - key >= self.config.sliding_window_size
        return {
            "full_attention": hidden[:, None] * HIDDEN_FROM,
            "sliding_attention": (hidden | too_far)[:, None] * HIDDEN_FROM,
            "linear_attention": None,
        }

    def advance(self, tokens: int) -> None:
        """Counts `tokens` columns that a forward has filled in every row."""
        self.column += tokens
        self.lengths = [length + tokens for length in self.lengths]

    def reserve(self, tokens: int) -> None:
        """Makes room for `tokens` more columns by moving the used ones to the front."""
        if self.column + tokens <= self.columns:
            return
        used = slice(self.first, self.column)
        width = used.stop - used.start
        for buffer in (*self.keys, *self.values):
            buffer[: self.rows, :, :width] = buffer[: self.rows, :, used].clone()
        self.column = width

    def join(self, row: Row) -> None:
        """Copies `row` into the next free row."""
        if self.column < row.length:
            self._shift_right(row.length - self.column)
        target = slice(self.column - row.length, self.column)
        for layer, (keys, values) in enumerate(zip(row.keys, row.values, strict=True)):
            self.keys[layer][self.rows, :, target] = keys
            self.values[layer][self.rows, :, target] = values
            for buffer, state in zip(self.convolutions[layer], row.convolutions[layer], strict=True):
                buffer[self.rows] = state
        self.lengths.append(row.length)
        self.rows += 1

    def _shift_right(self, by: int) -> None:
        used, moved = slice(self.first, self.column), slice(self.first + by, self.column + by)
        for buffer in (*self.keys, *self.values):
            buffer[: self.rows, :, moved] = buffer[: self.rows, :, used].clone()
        self.column += by

    def read(self, index: int, routes: Tensor) -> Row:
        """A copy of row `index`."""
        length = self.lengths[index]
        source = slice(self.column - length, self.column)
        return Row(
            length=length,
            keys=[buffer[index, :, source].clone() for buffer in self.keys],
            values=[buffer[index, :, source].clone() for buffer in self.values],
            convolutions=[[buffer[index].clone() for buffer in layer] for layer in self.convolutions],
            routes=routes,
        )

    def leave(self, index: int) -> None:
        """Frees row `index`; the last row takes its place."""
        last = self.rows - 1
        buffers = [*self.keys, *self.values, *(buffer for layer in self.convolutions for buffer in layer)]
        for buffer in buffers:
            buffer[index] = buffer[last]
        self.lengths[index] = self.lengths[last]
        self.lengths.pop()
        self.rows = last
