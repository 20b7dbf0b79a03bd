#!/usr/bin/env python3
"""Stands in for gcloud, kubectl and docker: writes each call down, answers from a file, remembers what was created.

The folder that it lies in holds calls.jsonl, answers.json ([pattern, how often, exit code, stdout, stderr], where a
negative count never ends) and there.json (what is there, by `KIND NAME`, as `describe` tells it).
"""

import json
import os
import re
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
PROGRAM, ARGUMENTS = Path(sys.argv[0]).name, sys.argv[1:]
LINE = " ".join([PROGRAM, *ARGUMENTS])
WORDS = [word for word in ARGUMENTS if not word.startswith("--")]


def main() -> int:
    with (FOLDER / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps([PROGRAM, *ARGUMENTS]) + "\n")
    answers = json.loads((FOLDER / "answers.json").read_text())
    for answer in answers:
        pattern, times, code, output, errors = answer
        if times and re.search(pattern, LINE):
            answer[1] -= 1
            (FOLDER / "answers.json").write_text(json.dumps(answers))
            if output == "hang":
                (FOLDER / "hanging").write_text(str(os.getpid()))
                time.sleep(60)
            print(output, end="")
            print(errors, end="", file=sys.stderr)
            return code
    return resource() if PROGRAM == "gcloud" or "namespace" in WORDS else 0


def resource() -> int:
    if "get-credentials" in WORDS:
        file = Path(os.environ["KUBECONFIG"])
        file.parent.mkdir(exist_ok=True)
        file.write_text("a kubeconfig")
        return 0
    verbs = {"describe", "create", "delete", "submit", "get"} & set(WORDS)
    if not verbs:
        return 0
    verb = verbs.pop()
    there = json.loads((FOLDER / "there.json").read_text())
    # An account is created by the part of its address before the @.
    name = next((word[word.index("_IMAGE=") + 7 :] for word in ARGUMENTS if "_IMAGE=" in word), WORDS[-1])
    key = name.partition("@")[0]
    if verb in ("describe", "get"):
        if key not in there:
            print(f"ERROR: ({verb}) NOT_FOUND: {name} was not found", file=sys.stderr)
            return 1
        print(
            there[key].get("digest", "")
            if not {"--format=json", "--output=json"} & set(ARGUMENTS)
            else json.dumps(there[key])
        )
    elif verb == "delete":
        there.pop(key, None)
    else:
        there[key] = {"digest": "sha256:" + "a" * 64}
    (FOLDER / "there.json").write_text(json.dumps(there))
    return 0


sys.exit(main())
