"""The one table of what each agent's recipe makes of a sampled reply, and of the history that comes back.

                    camel                                    terminus-2
pinned stack        Miles with a parser of its own;          Miles 80a25cb; SGLang's reasoning and tool-call
                    SGLang's parsers off                     parsers on
reads               token ids: marker-like text is text      decoded text without the stop token: marker-like
                                                             text counts as a marker
content             the complete text blocks                 text blocks, cut ones too; text outside of blocks;
                                                             native tool blocks, markers and all
reasoning_content   the complete thinking blocks             thinking blocks, cut ones too; null when empty
tool_calls          the tool_json blocks; none after a       never: the agent declares no tools, and without
                    broken rule                              tools SGLang's tool-call parser does not run
a broken rule       the first one is told in meta_info       not told; recorded as the turn's parse_error
a field without     left out                                 null (LiteLLM would read <think> tags in content where
a value                                                      reasoning_content is left out)
finish_reason       tool_calls when the reply stopped and    the engine's
                    has calls; else the engine's
kept for a          every complete block, a call's           text and thinking blocks of a reply that is nothing
re-rendering        recipient and JSON as sampled            else; otherwise none: thinking, then text
declared tools      the same in every request                refused: that parser's rules are not reproduced
appended messages   tool, user, system                       any role, or none
last request again  its turn is taken back                   its turn is taken back
edited history      refused                                  the edited turn is taken back, what came for it is
                                                             prompt; refused when two turns or more would go

Blocks are never sent to the client. A turn that was taken back is not trained. What is trained are the very ids
that the engine sampled, whatever the client replays.

Read in, for camel: Miles pull request 2302, miles/utils/chat_template_utils/{inkling_parser,tito_tokenizer}.py.
Its histories are stricter here than there: the agent replays verbatim, so that an edit is a bug. For terminus-2:
SGLang 0.5.16, srt/parser/{reasoning_parser,inkling_tokenizer}.py, srt/entrypoints/openai/serving_chat.py and
srt/managers/detokenizer_manager.py; kept blocks by the description of SGLang pull request 34119, for the pinned
commit is not public; histories in Miles 80a25cb, miles/rollout/session/{core,linear_trajectory}.py and
miles/utils/chat_template_utils/{template,tito_tokenizer}.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recipe.engines.local.parsing import KIND_OF_CONTENT_ID, ParsedReply, parse_reply
from recipe.engines.local.rendering import Block, decode
from recipe.engines.local.vocabulary import FIRST_UNDECODABLE_ID, STOP_ID

MODEL, END, CALL = "<|message_model|>", "<|end_message|>", "<|content_invoke_tool_json|>"
CALL_IDS = {token for token, kind in KIND_OF_CONTENT_ID.items() if kind in {"tool_json", "tool_text"}}
# Where the text after a marker stands; CALL and a quoted MODEL have rules of their own, other markers have none.
PLACE_AFTER = {
    MODEL: "header",
    "<|content_text|>": "text",
    "<|content_thinking|>": "thinking",
    END: "outside",
    "<|content_model_end_sampling|>": "outside",
}
# What SGLang's parser takes for a marker; every other special token stays in the text by its name.
MARKER = re.compile(
    r"(<\|(?:endoftext|message_(?:user|model|system|tool)|end_message|audio_end|model_trigger_generation"
    r"|content_(?:text|image|model_end_sampling|thinking|audio_input|tool_error|xml"
    r"|invoke_tool(?:_json|_text)?))\|>)"
)
BLOCK = re.compile(r"<\|message_model\|><\|content_(text|thinking)\|>(.*?)<\|end_message\|>", re.DOTALL)


def parse_as_text(ids: Sequence[int]) -> ParsedReply:
    """Parses one turn's sampled ids as SGLang's parsers do for a request without tools; never raises."""
    ids = ids[:-1] if ids and ids[-1] == STOP_ID else ids
    decodable = [token for token in ids if 0 <= token < FIRST_UNDECODABLE_ID]
    text = decode(decodable)
    content, reasoning = _by_place(text)
    blocks = _ordered_blocks(text) if len(decodable) == len(ids) else None
    broken = "unframed_reply" if CALL_IDS.isdisjoint(ids) else "native_tool_block"
    return ParsedReply(content, reasoning or None, (), None if blocks else broken, blocks)


def _by_place(text: str) -> tuple[str, str]:
    """The text that is content, and the text that is reasoning."""
    first, *rest = MARKER.split(text)
    said = {"text": [first], "thinking": [""]}
    place, header = "outside", ""
    for marker, after in zip(rest[::2], rest[1::2], strict=True):
        if place == "call":
            said["text"].append(marker)
            place = "outside" if PLACE_AFTER.get(marker) == "outside" else "call"
        elif marker == CALL:
            said["text"].append(f"{MODEL}{header}{CALL}" if place == "header" else CALL)
            place = "call"
        elif marker == MODEL and place in said:
            said[place].append(MODEL)  # a header follows an end only: here the policy quotes it
        else:
            place = PLACE_AFTER.get(marker, place)
        if place == "header":  # is dropped, unless a call follows
            header = after if marker == MODEL else header + after
        else:
            said[place if place in said else "text"].append(after)
    return "".join(said["text"]), "".join(said["thinking"])


def _ordered_blocks(text: str) -> tuple[Block, ...] | None:
    """The blocks of a reply that is nothing but complete blocks of text and thinking."""
    blocks = BLOCK.findall(MODEL + text)
    whole = "".join(f"{MODEL}<|content_{kind}|>{said}{END}" for kind, said in blocks)
    if not blocks or whole != MODEL + text or any(MARKER.search(said) for _, said in blocks):
        return None
    return tuple(Block(kind, said) for kind, said in blocks)


@dataclass(frozen=True)
class ReplyRules:
    """One column of the table above."""

    parse: Callable[[Sequence[int]], ParsedReply]
    tells_errors: bool
    sends_null: bool  # for a reply without reasoning_content or tool_calls
    takes_tools: bool
    rolls_back: bool  # takes an edited turn back, and any appended messages


RULES = {
    "camel": ReplyRules(parse_reply, tells_errors=True, sends_null=False, takes_tools=True, rolls_back=False),
    "terminus-2": ReplyRules(
        parse_as_text, tells_errors=False, sends_null=True, takes_tools=False, rolls_back=True
    ),
}
