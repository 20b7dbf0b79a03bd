"""A bump tells what becomes of the job's flags between two commits of a checkout."""

from __future__ import annotations

import subprocess

import pytest

from recipe.engines.miles.contract.compare import flags_of
from recipe.resolve import load_sources

PARSER = """
def add_miles_arguments(parser):
    parser.add_argument("--rollout-batch-size", type=int)
    parser.add_argument("{}", type=int)
"""
MODEL = "scripts/models/inkling-small.sh"


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgSign=false"]
    done = subprocess.run(
        ["git", "-C", folder, *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "work")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def told(tmp_path):
    """What is told of a bump between two versions of the parser's file, and of the model's."""
    git(tmp_path, "init", "--quiet")
    settings = load_sources([f"MEGATRON_PATH={tmp_path}/none", f"SGLANG_DIR={tmp_path}/none"])

    def tell(source, *versions):
        revs = [commit(tmp_path, files) for files in versions]
        return list(flags_of(settings)(source, tmp_path, *revs))

    return tell


def version(flag, **more):
    return {
        "miles/utils/arguments.py": PARSER.format(flag),
        MODEL: "MODEL_ARGS=(\n  --rollout-batch-size 3\n)\n",
        **more,
    }


def test_a_flag_that_the_new_commit_does_not_know_is_named(told):
    lines = told("miles", version("--n-samples-per-prompt"), version("--samples"))
    # Megatron, which is not here, might register it.
    assert "flag --n-samples-per-prompt 8: fits -> not judged" in lines
    assert lines[-1].startswith("flags that miles registers otherwise than before: 1 of ")


def test_a_commit_that_can_not_be_read_is_told_and_ends_nothing(told):
    broken = version("--samples") | {MODEL: "nothing\n"}
    (line,) = told("miles", version("--samples"), broken)
    assert line == "what becomes of the flags of miles: unknown, the model's flags can't be read"


def test_a_source_without_flags_is_not_compared(told):
    assert told("harbor", version("--a"), version("--b")) == []
