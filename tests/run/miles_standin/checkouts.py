"""Checkouts that stand in for Miles, Megatron-LM and SGLang, such that the contract holds; and for the weights."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterable
from pathlib import Path

from standin.harbor_checkout import git

from recipe.engines.miles.environment import environment
from recipe.engines.miles.flags import Flag, flags
from recipe.pins import load_pins
from recipe.resolve import resolve

CHECKOUT = Path(__file__).parent / "checkout"
PARSER = """
import argparse

from megatron.training.arguments import add_megatron_arguments


def add_miles_arguments(parser):
{lines}
    return parser


def parse_args():
    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    return add_miles_arguments(parser).parse_args()
"""
MEGATRON = """
def add_megatron_arguments(parser):
    parser.add_argument("--num-layers", type=int, required=True)
    parser.add_argument("--disable-bias-linear", action="store_true")
    return parser
"""
NUMBERS = ("n-samples-per-prompt", "rollout-max-response-len", "max-seq-len")


def make_checkouts(folder: Path) -> dict[str, str]:
    """Makes them below `folder`; the settings that name them."""
    places = {
        "MILES_DIR": "miles",
        "SGLANG_DIR": "sglang",
        "MEGATRON_PATH": "megatron",
        "MODEL_ROOT": "models",
    }
    miles, sglang, megatron, models = (folder / place for place in places.values())
    conversion = models / "Inkling-Small_torch_dist"
    # A settings object of each kind shows every flag and variable.
    given = {"engine": "miles", "tasks_dir": "t", "head_ip": "h", "wandb_api_key": "k", "wandb_entity": "e"}
    settings = resolve({name: (value, "test") for name, value in given.items()})
    shutil.copytree(CHECKOUT, miles, ignore=shutil.ignore_patterns("__pycache__"))
    names = environment(settings, "http://h", folder)
    files = {
        miles / "miles/utils/arguments.py": PARSER.format(
            lines="".join(_registering(flags(settings, folder)))
        ),
        miles / "miles/utils/variables.py": "import os\n"
        + "".join(f'os.environ.get("{name}")\n' for name in names),
        megatron / "megatron/core/__init__.py": "",
        megatron / "megatron/training/arguments.py": MEGATRON,
        sglang / "python/sglang/__init__.py": "",
        sglang / "python/sglang/srt/server_args.py": "",
        models / "Inkling-Small/config.json": "{}",
        conversion / "latest_checkpointed_iteration.txt": "release",
        conversion / "release/metadata.json": '{"sharded_backend": "torch_dist"}',
        conversion / "release/common.pt": "-",
        # A pickle that names the one shard.
        conversion / "release/.metadata": pickle.dumps("__0_0.distcp", protocol=0).decode(),
        conversion / "release/__0_0.distcp": "-",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for feature in load_pins().features:
        path = folder / feature.source / feature.file
        if feature.source in ("miles", "sglang") and feature.present:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"# {feature.present}\n")
    for checkout in (miles, sglang):
        git(folder, "init", "--quiet", str(checkout))
        git(checkout, "add", "--all")
        git(checkout, "commit", "--quiet", "-m", "work")
    return {name: str(folder / place) for name, place in places.items()}


def _registering(ours: Iterable[Flag]) -> Iterable[str]:
    for flag in ours:
        kind = ", type=int" if flag.name.removeprefix("--") in NUMBERS else ""
        takes = {0: ', action="store_true"', 1: kind}.get(len(flag.values), ', nargs="+"')
        yield f'    parser.add_argument("{flag.name}"{takes})\n'
