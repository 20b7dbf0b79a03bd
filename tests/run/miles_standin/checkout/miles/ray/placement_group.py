"""What the recipes rely on here."""

from __future__ import annotations


def first_rollout(args):
    if args.start_rollout_id is None:
        args.start_rollout_id = 1
