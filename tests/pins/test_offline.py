"""The offline ring: it is clean as the project stands, and each drift is told with all its facts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from drifting import change, git, only_drift, other_digit

from recipe.drift import flake, offline, rendered
from recipe.errors import BadInputError
from recipe.pins import load_pins


def run(tree, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    # Without these, root is asked for permission like everybody else.
    like_others = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    return subprocess.run(
        [*like_others, sys.executable, "-m", "recipe", "pins-check", "--online", "off", *arguments],
        cwd=tree,
        env=dict(os.environ, PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1", **variables),
        capture_output=True,
        text=True,
    )


def test_a_fresh_copy_is_clean(tree):
    done = run(tree, "--json")
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout)
    offline_lines = [line for line in told["lines"] if line["ring"] == "offline"]
    assert [line for line in offline_lines if line["status"] != "ok"] == []
    assert told["counts"]["ok"] == len(offline_lines) > 15
    assert all(line["reason"] for line in told["lines"] if line["status"] == "skip")


def test_a_drift_is_exit_code_1_and_malformed_pins_are_2(tree):
    change(tree / "docs" / "settings.md", "| SEED |", "| SEEDS |")
    drifted = run(tree)
    assert drifted.returncode == 1
    assert "DRIFT  docs/settings.md" in drifted.stdout
    assert "1 drifted" in drifted.stdout
    line = change(tree / "pins" / "upstream.json", '"digest":', '"digset": "", "digest":')
    malformed = run(tree)
    assert (malformed.returncode, malformed.stdout) == (2, "")
    assert "upstream.json: image.digset is unknown" in malformed.stderr
    assert f"where    {tree}/pins/upstream.json:{line}" in malformed.stderr
    assert all(
        part in malformed.stderr
        for part in ("expected a key of the schema", "found    digset", "run      git")
    )


def test_a_changed_digit_in_the_containerfile_is_named(tree):
    pins = load_pins(tree)
    path = tree / "container" / "Containerfile"
    path.parent.mkdir(exist_ok=True)
    wrong = other_digit(pins.image.digest)
    path.write_text(
        f"# from the pins\nARG BASE={pins.image.reference.replace(pins.image.digest, wrong)}\nFROM $BASE\n"
    )
    git(tree, "add", "--all")
    facts = only_drift(offline.literals(tree, pins))
    assert facts["expected"] == pins.image.digest.removeprefix("sha256:")
    assert facts["found"] == wrong.removeprefix("sha256:")
    assert facts["where"] == "container/Containerfile:2"
    assert "git checkout container/Containerfile" in facts["run"]


def test_a_changed_digit_in_readme_is_named_by_the_table_and_by_the_literals(tree):
    pins = load_pins(tree)
    rev = pins.recipes["terminus2"].sources["sglang"].rev
    line = change(tree / "README.md", f"commit/{rev}", f"commit/{other_digit(rev)}")
    facts = only_drift(rendered.check(tree, pins))
    assert rev in facts["expected"]
    assert other_digit(rev) in facts["found"]
    assert (facts["where"], facts["run"]) == (f"README.md:{line}", "recipe pins-check --write")
    literal = only_drift(offline.literals(tree, pins))
    assert (literal["expected"], literal["found"]) == (rev, other_digit(rev))
    assert literal["where"] == f"README.md:{line}"


def test_what_a_drift_of_a_rendered_file_says_to_run_mends_it(tree):
    change(tree / "README.md", "| image |", "| imago |")
    change(tree / ".env.example", "#SEED=42", "#SEED=43")
    assert sum(line.bad for line in rendered.check(tree, load_pins(tree))) == 2
    assert run(tree, "--write").returncode == 0
    assert "| imago |" not in (tree / "README.md").read_text()


def test_what_can_not_be_written_is_named(tree):
    (tree / ".env.example").unlink()
    tree.chmod(0o555)
    done = run(tree, "--write")
    tree.chmod(0o755)
    assert done.returncode == 1
    assert f"where    {tree}/.env.example" in done.stderr


def test_a_commit_that_is_no_pin_is_refused_in_a_tracked_text_only(tree):
    pins = load_pins(tree)
    stray = "0123456789" * 4
    (tree / "docs" / "untracked.md").write_text(stray)
    (tree / "tests" / "pins" / "test_pins.py").write_text(stray)
    assert [line.status for line in offline.literals(tree, pins)] == ["ok"]
    git(tree, "add", "docs/untracked.md")
    facts = only_drift(offline.literals(tree, pins))
    assert (facts["expected"], facts["found"]) == ("a value of pins/", stray)
    assert facts["where"] == "docs/untracked.md:1"


def test_a_commit_in_no_text_is_found_and_odd_files_stop_nothing(tree):
    folder = tree / "docs"
    (folder / "picture \xe9.bin").write_bytes(b"\xff" + b"0123456789" * 4)
    (folder / "loop").symlink_to("loop")
    (folder / "pipe").write_text("")
    git(tree, "add", "docs")
    (folder / "pipe").unlink()
    os.mkfifo(folder / "pipe")
    facts = only_drift(offline.literals(tree, load_pins(tree)))
    assert facts["where"] == "docs/picture \xe9.bin:1"
    assert facts["run"].startswith("git checkout 'docs/picture \xe9.bin'")


def test_a_locale_without_utf_8_changes_nothing(tree):
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    (tree / "README.md").write_text((tree / "README.md").read_text() + "é\n")
    done = run(tree, **ascii_only)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_may_not_be_read_is_named(tree, tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    absent = run(tree, f"MILES_DIR={tmp_path}/closed/miles")
    assert absent.returncode == 1, absent.stderr
    assert f"where    {tmp_path}/closed/miles" in absent.stdout
    (tree / "Makefile").chmod(0)
    done = run(tree)
    assert done.returncode == 2
    assert f"where    {tree}/Makefile" in done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("container/Containerfile", "FROM ${BASE}", "from docker.io/a/b:latest", "FROM ${BASE}"),
        ("container/Containerfile", "FROM ${BASE}", "FROM ${BASE}\nFROM ${BASE}", "FROM ${BASE}"),
        ("container/Containerfile", "ARG MILES_REV", "ARG MILES_REV=main", "ARG without a default"),
        ("container/Containerfile", "ARG MILES_REV", "arg A MILES_REV=main", "ARG without a default"),
        (".github/workflows/ci.yml", "# v7.0.0", "# v6.0.0", "actions/checkout@"),
        (
            ".github/workflows/ci.yml",
            "- uses: actions/checkout@9",
            "- uses: actions/checkout@8",
            "actions/check",
        ),
        (
            ".github/workflows/nightly.yml",
            "- uses: actions",
            '- {"uses": x/y@v1}\n      - uses: actions',
            "of pins",
        ),
    ],
)
def test_what_repeats_a_pin_of_its_own_is_named(tree, file, old, new, expected):
    line = change(tree / file, old, new)
    facts = only_drift(offline.repeated(tree, load_pins(tree)))
    assert expected in facts["expected"]
    assert facts["where"] in (f"{file}:{line}", f"{file}:1")
    assert facts["run"] == f"git diff {file}"


def test_literals_are_skipped_where_git_has_no_files_to_list(tree):
    (tree / ".git").rename(tree.parent / "away")
    (line,) = offline.literals(tree, load_pins(tree))
    assert line.status == "skip"
    assert "not a git repository" in line.facts["reason"]


@pytest.fixture
def lock(tree):
    path = tree / "flake.lock"
    if not path.is_file():
        pytest.skip("there is no flake.lock")
    return path


def test_a_changed_digit_in_flake_lock_is_named(tree, lock):
    pins = load_pins(tree)
    locked = json.loads(lock.read_text())["nodes"]["nixpkgs"]["locked"]
    line = change(lock, locked["rev"], other_digit(locked["rev"]))
    facts = only_drift(flake.check(tree, pins))
    assert pins.flake_inputs["nixpkgs"].seal in facts["expected"]
    assert other_digit(locked["rev"]) in facts["where"]
    # The seal is of the whole object, which starts a few lines above.
    path, _, number = facts["where"].partition(" ")[0].partition(":")
    assert path == "flake.lock"
    assert line - 6 <= int(number) <= line
    assert "make pins-bump SOURCE=nixpkgs" in facts["run"]


@pytest.mark.parametrize(
    ("old", "new", "expected", "found"),
    [
        ('"version"', "version", "JSON with", "property name"),
        ('"nodes"', '"node"', "this key", "nothing"),
        ('"nodes": {', '"nodes": 5, "other": {', "dictionary", "5"),
        ('"locked": {', '"locked": [{}], "other": {', "dictionary", "[{}]"),
        ('"root": "root"', '"root": {}', "string", "nothing"),
        ('"version": 7', f'"version": {"[" * 100_000}', "JSON with", "recursion"),
    ],
)
def test_a_malformed_flake_lock_is_named(tree, lock, old, new, expected, found):
    change(lock, old, new)
    bad = [line for line in flake.check(tree, load_pins(tree)) if line.bad]
    assert any(
        expected in line.facts["expected"]
        and found in line.facts["found"]
        and "flake.lock" in line.facts["where"]
        and "nix flake lock" in line.facts["run"]
        for line in bad
    ), [str(line) for line in bad]


def test_an_input_without_a_seal_is_a_drift(tree, lock):
    change(lock, '"nodes": {', '"nodes": {"stray": {},')
    facts = only_drift(flake.check(tree, load_pins(tree)))
    assert "'stray'" in facts["expected"]
    assert "'stray'" not in facts["found"]
    assert (facts["where"], facts["run"]) == (
        "pins/flake.json:1",
        "git diff pins/flake.json; a new input needs an entry with a reason",
    )


def test_a_deleted_lock_is_a_drift(tree):
    (tree / "flake.lock").unlink()
    facts = only_drift(flake.check(tree, load_pins(tree)))
    assert "No such file" in facts["found"]
    assert facts["run"].startswith("git checkout flake.lock")


@pytest.mark.parametrize("mark", [rendered.START, rendered.END])
def test_a_lost_mark_of_the_readme_is_refused_and_nothing_is_written(tree, mark):
    readme = tree / "README.md"
    text = readme.read_text().replace(mark, "")
    readme.write_text(text)
    with pytest.raises(BadInputError, match="lost the marks"):
        rendered.write(rendered.stale(tree, load_pins(tree)))
    assert readme.read_text() == text


def test_a_feature_of_a_source_that_its_recipe_lacks_is_named(tree):
    line = change(tree / "pins" / "relied_on.json", '"source": "sglang"', '"source": "camel"')
    facts = only_drift(offline.references(tree, load_pins(tree)))
    assert facts["expected"] == "one of miles, sglang, harbor, the sources of terminus2"
    assert (facts["found"], facts["where"]) == ("camel", f"pins/relied_on.json:{line}")


def test_another_path_of_the_image_is_named(tree):
    line = change(tree / "pins" / "upstream.json", '"/root/miles"', '"/root/Miles"')
    facts = only_drift(offline.references(tree, load_pins(tree)))
    assert (facts["expected"], facts["found"]) == ("/root/miles", "/root/Miles")
    assert facts["where"] == f"pins/upstream.json:{line}"
