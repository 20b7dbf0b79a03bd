"""What the cluster's nodes are to be asked, and the verdict of each check over the JSON that they tell.

The checks themselves are the rows of recipe/doctor/node_checks.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from recipe.doctor.lineage import TRACKER
from recipe.doctor.node_checks import NODE_CHECKS, Node, NodeCheck, nothing
from recipe.doctor.results import Result, UnaskedError, Verdict, guarded
from recipe.errors import BadInputError
from recipe.pins import load_pins
from recipe.settings import Settings

# Of a feature, what a node looks for; the rest is for people.
TOLD = ("name", "source", "file", "present", "absent", "pattern")


def question(settings: Settings, clean: Sequence[str] = ()) -> dict[str, Any]:
    """The argument of recipe/plugins/nodes.py; `clean`: the runs whose leftovers it ends."""
    pins, converted = load_pins(), settings.torch_dist_dir
    files = [settings.model_dir / "model.safetensors.index.json", settings.model_dir / "config.json"]
    files += [folder / TRACKER for folder in (converted, settings.load_dir) if folder is not None]
    folders = {"miles": settings.miles_dir, "sglang": settings.sglang_dir, "megatron": settings.megatron_path}
    features = [one for name in ("miles", "sglang") for one in pins.features_of(settings.recipe, name)]
    return {
        "folders": {name: str(folder) for name, folder in folders.items()},
        "features": [one.model_dump(include=set(TOLD)) for one in features],
        "models": list(dict.fromkeys(map(str, files))),
        "head": [settings.head_ip, settings.ray_dashboard_port],
        "runs_root": str(settings.runs_root),
        "clean": list(clean),
    }


def judge(
    nodes: Sequence[Node], settings: Settings, only: Collection[str] = (), skip: Collection[str] = ()
) -> list[Result]:
    """A result for each chosen check. A node that did not answer fails the first one, and is in no other."""
    return [
        Result(check.name, "skip", "as asked")
        if check.name in skip
        else guarded(check.name, partial(_judge, check, nodes, settings))
        for check in NODE_CHECKS
        if not only or check.name in only
    ]


def _judge(check: NodeCheck, nodes: Sequence[Node], settings: Settings) -> Result:
    answered = nodes if check is NODE_CHECKS[0] else [node for node in nodes if not node["error"]]
    cells = {n["ip"]: check.cell(n, settings) for n in answered if n["head"] or not check.head}
    texts = {ip: "fine" if check.holds is nothing and not cell else _text(cell) for ip, cell in cells.items()}
    if not cells:
        raise UnaskedError("no node told of it")
    expected = check.expected if isinstance(check.expected, str) else check.expected(settings)
    common = Counter(texts.values()).most_common(1)[0][0]
    odd = [ip for ip, text in texts.items() if text != common and (check.equal or check.holds is None)]
    bad = [ip for ip, cell in cells.items() if check.holds and not check.holds(cell, settings)] or odd
    found = _found(texts, bad)
    if not bad:
        return Result(check.name, "ok", found, expected, cells=texts)
    error = BadInputError(
        f"not every node is fit: {check.name}", expected=expected, found=found, run=check.run
    )
    verdict: Verdict = "warn" if check.strict and not settings.strict_pins else "FAIL"
    return Result(check.name, verdict, found, expected, check.run, [error], texts, bad)


def _found(texts: Mapping[str, str], bad: Collection[str]) -> str:
    """What the odd nodes have, once for those that have the same; else the values that there are."""
    if not bad:
        return " or ".join(sorted(set(texts.values())))
    lines = []
    for text in dict.fromkeys(texts[ip] for ip in bad):
        of_text = [ip for ip in bad if texts[ip] == text]
        where = "every node" if len(of_text) == len(texts) > 1 else ", ".join(of_text)
        lines.append(f"{where}: {text}".replace("\n", "\n  "))
    return "\n".join(lines)


def _text(cell: Any) -> str:
    if isinstance(cell, list):
        cell = "\n".join(map(str, cell)) or None
    return "none" if cell is None else str(cell)
