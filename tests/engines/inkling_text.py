"""Token streams written as text: `<|marker|>` stands for a control token, all else is ordinary text."""

from __future__ import annotations

import re

from tml_renderers import tokenizers

TOKENIZER = tokenizers.O200kBaseChatTokenizer()


def ids_of(text: str) -> list[int]:
    ids: list[int] = []
    for part in re.split(r"(<\|\w+\|>)", text):
        marker = re.fullmatch(r"<\|(\w+)\|>", part)
        ids += [TOKENIZER.encode_special(marker[1])] if marker else TOKENIZER.encode_ordinary(part)
    return ids


def ordinary(text: str) -> list[int]:
    return TOKENIZER.encode_ordinary(text)
