"""What the recipes rely on here."""

from __future__ import annotations


def name_session_servers(args, ids):
    args.session_server_instance_ids = ids
