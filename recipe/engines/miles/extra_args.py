"""EXTRA_ARGS as flags, and which of them are refused: each with its reason."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping

from recipe.errors import BadInputError

REFUSED = {
    "--wandb-key": "a command line is read by others; set WANDB_API_KEY in the environment or in .env",
    "--apply-chat-template": "the prompts are messages, which the session server renders",
    "--sglang-enable-multimodal": "the converted checkpoint holds no vision and no audio weights",
    "--sglang-tool-call-parser": "the agent decides: CAMEL needs SGLang's parsers off, Terminus-2 has them on",
    "--sglang-reasoning-parser": "the agent decides: CAMEL needs SGLang's parsers off, Terminus-2 has them on",
    "--rollout-num-gpus-per-engine": "engines of 4 GPUs leave no room for the update of the weights",
    "--context-parallel-size": "context parallelism ran into NCCL time-outs in live runs",
    "--allgather-cp": "context parallelism ran into NCCL time-outs in live runs",
    "--use-rollout-logprobs": "it excludes --use-tis",
    "--tensor-model-parallel-size": "tensor and expert parallelism fill a node of 8",
    "--expert-model-parallel-size": "tensor and expert parallelism fill a node of 8",
    "--start-rollout-id": "rollouts are counted from 0; else NUM_ROLLOUT does not hold",
    "--no-colocate": "sampling and training share every GPU",
}
REFUSED_PREFIXES = {"--eval-": "nothing is evaluated in a run; evaluate its checkpoints"}
SECRET = re.compile(r"-(api-key|hf-token|auth-token|secret|password)$")
NUMBER = re.compile(r"-\.?\d")


def extra_flags(text: str, sources: Mapping[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Flags with their values; `sources` of our own ones by name tell which a setting decides.

    Raises BadInputError, which never shows a value: it might be a secret.
    """
    found: dict[str, list[str]] = {}
    for name, values in _split(text):
        if name in found:
            raise _bad(f"{name} twice", "each flag once")
        if reason := _refusal(name):
            raise _bad(name, f"no such flag: {reason}")
        setting = re.match(r"([A-Z_]+) \(", sources.get(name, ""))
        if setting:
            raise _bad(name, f"{setting[1]} set instead")
        found[name] = values
    return [(name, tuple(values)) for name, values in found.items()]


def _refusal(name: str) -> str | None:
    """Why the flag is refused. An abbreviation of a refused one is refused as well: it may stand for it."""
    if SECRET.search(name):
        return "a command line is read by others"
    reasons = [reason for refused, reason in REFUSED.items() if refused.startswith(name)]
    reasons += [reason for prefix, reason in REFUSED_PREFIXES.items() if name.startswith(prefix)]
    return next(iter(reasons), None)


def _split(text: str) -> Iterator[tuple[str, list[str]]]:
    """`--name value ...` and `--name=value`, quoted as in a shell."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _bad(str(error), "shell quoting") from None
    starts = [number for number, word in enumerate(words) if word.startswith("-") and not NUMBER.match(word)]
    if words and (not starts or starts[0] != 0):
        raise _bad("a value before the first flag", "--name value ...")
    for start, end in itertools.pairwise([*starts, len(words)]):
        name, equals, value = words[start].partition("=")
        if not re.fullmatch(r"--[a-z0-9][a-z0-9-]*", name):
            raise _bad(f"word {start + 1}", "--name value ..., in lower case with hyphens")
        yield name, [*([value] if equals else []), *words[start + 1 : end]]


def _bad(found: str, expected: str) -> BadInputError:
    return BadInputError("EXTRA_ARGS can't be taken", expected=expected, found=found)
