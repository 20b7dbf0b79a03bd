"""Ids of Inkling's vocabulary that the engine needs without loading the tokenizer."""

from __future__ import annotations

# Rows of the embedding and of the head.
VOCAB_ROWS = 201024
# Ids from here on are padding rows: the tokenizer can't decode them, so they are never sampled.
FIRST_UNDECODABLE_ID = 200058
# <|message_model|>: the last id of every prompt.
MESSAGE_MODEL_ID = 200001
# <|content_model_end_sampling|>: ends a turn; it is sampled and trained.
STOP_ID = 200006
