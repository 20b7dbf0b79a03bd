"""Asks Modal about its sandboxes, run by the pinned Harbor's Python, whose environment has Modal's own client.

modal_sandboxes.py check           whether Modal takes the credentials
modal_sandboxes.py list            a JSON line for each running sandbox of Harbor's app: id, tags
modal_sandboxes.py terminate ID
"""

import json
import os
import sys

# Harbor's sandboxes are of Modal's second kind, which its client lists only so; read when it is imported.
os.environ["MODAL_SANDBOX_V2"] = "1"

import modal  # type: ignore[import-not-found]

APP = "__harbor__"  # Harbor's name for it


def main(command: str, sandbox: str = "") -> None:
    """Prints the answer. A failure is the client's own exception, on stderr, and exit code 1."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # for whatever the client has to say
    modal.Client.from_env().hello()
    if command == "list":
        try:
            app = modal.App.lookup(APP)
        except modal.exception.NotFoundError:  # no sandbox was ever made
            return
        for one in modal.Sandbox.list(app_id=app.app_id):
            print(json.dumps({"id": one.object_id, "tags": one.get_tags()}), file=answers)
    elif command == "terminate":
        modal.Sandbox.from_id(sandbox).terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
