"""Whether anybody reads an environment variable that the job sets, and where: told from source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from recipe.drift.lines import Line, drift, skip
from recipe.engines.miles.contract.sources import Sources
from recipe.engines.miles.environment import RUN_MARK

PACKAGES = ("miles", "miles_plugins", "megatron", "sglang")
# Filled with a variable's name and with what stands for it in a file: the name in quotes, or a constant for it.
# Functions that read have "env" in their name and set nothing, or are those of recipe/plugins/environment.py.
READ = r"""
    (?: \benviron\.get | \b(?!set|put|del|unset|environ\b)\w*(?i:env)\w* | \b(?:required|optional) ) \(\s*(?:{named})
  | \benviron\[(?:{named})\](?!\s*=[^=])
  | (?:{named})\s+(?:not\s+)?in\s+(?:os\.)?environ\b
  | \benvs\.{name}\.get\(
"""
# Who reads the variables that match, though no source of it is here.
ELSEWHERE = {
    "(NCCL|CUDA)_.*|GLOO_SOCKET_IFNAME|SPT_NOENV": "a compiled library in the image",
    "RAY_.*|TORCHINDUCTOR_CACHE_DIR|MASTER_ADDR": "Ray and PyTorch, packages in the image",
    "(no|http|https)_proxy|NETRC|WANDB_.*": "Weights & Biases and HTTP clients, packages in the image",
    "PYTHON(PATH|UNBUFFERED)": "Python, the interpreter itself",
    RUN_MARK: "this launcher, which looks for it among the processes of a node",
}
# Set by the reference's runs, and read in no public version of Miles, Megatron or SGLang that we found.
DOUBTFUL = ("SGLANG_SERVER_ENGINE_ROLLOUT_RETURN_LOGPROB",)


def lines(names: Iterable[str], sources: Sources) -> Iterator[Line]:
    """One line a variable. One that nobody reads is a drift, or not judged when a source is missing."""
    names, found = list(names), dict[str, str]()
    named = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    folders = [("recipe", "plugins"), *((one, "") for one in PACKAGES)] if names else []
    for source, path, text in chain.from_iterable(sources.texts(*one) for one in folders):
        for name in {*named.findall(text)} - found.keys():
            read = _read(name, text)
            if read:
                found[name] = f"{source.label}{path}:{text.count('\n', 0, read.start()) + 1}"
    missing = [name for name in PACKAGES if not sources.of(name)]
    for name in names:
        yield _line(name, found.get(name), missing)


def _read(name: str, text: str) -> re.Match[str] | None:
    """Where the text reads the variable first; a setting of it is none."""
    quoted = rf"[\"']{name}[\"']"
    constants = re.findall(rf"^\s*(\w+)\s*=\s*{quoted}", text, re.MULTILINE)
    named = "|".join([quoted, *(rf"{one}\b" for one in constants)])
    return re.search(READ.format(name=name, named=named), text, re.VERBOSE)


def _line(name: str, where: str | None, missing: Sequence[str]) -> Line:
    label = f"variable {name}"
    elsewhere = next((reader for names, reader in ELSEWHERE.items() if re.fullmatch(names, name)), None)
    if where or elsewhere:
        return Line("ok", label, {"expected": "a reader", "found": "read", "where": f"{where or elsewhere}"})
    if name in DOUBTFUL:
        return skip(label, "the reference sets it, but no source here reads it")
    if missing:
        return skip(label, f"there is no {' and no '.join(missing)} that may read it")
    where, mend = "recipe/engines/miles/environment.py", "make pins-check, or leave it out"
    return drift(label, expected="a reader", found="nobody reads it", where=where, run=mend)
