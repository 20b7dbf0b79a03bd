"""Finds plugins by their dotted paths and calls them."""

from __future__ import annotations

import importlib


def load_function(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def load_rollout_function(given, path):
    found = load_function(path)
    return found(given)


async def call_agent_abort_hook(args):
    module = args.custom_agent_function_path.rpartition(".")[0]
    hook = load_function(f"{module}.abort")
    try:
        await hook(args)
    except Exception as error:  # noqa: BLE001 - as Miles, which goes on
        print("Agent abort hook failed:", error)
