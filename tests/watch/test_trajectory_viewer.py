"""A trial's folder is read as turns; whatever an agent left in it, nothing is raised, followed or taken whole."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.untrusted import clean
from recipe.watch import trajectories
from recipe.watch.trajectories import Text, read


@pytest.fixture
def trials(tmp_path):
    """Writes files into the folder of the trial `t`."""

    def write(**files):
        for name, content in files.items():
            path = tmp_path / "t" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path

    return write


def lines(*messages) -> bytes:
    return b"".join(json.dumps({"time": 1.0, "message": message}).encode() + b"\n" for message in messages)


def words(trajectory) -> list[tuple[str, str, str]]:
    return [(turn.role, heading, text.shown) for turn in trajectory.turns for heading, text in turn.parts]


def test_our_agents_messages_are_turns_with_reasoning_calls_and_outputs(trials):
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "shell_exec", "arguments": '{"command": "ls"}'},
    }
    messages = (
        {"role": "user", "content": "Do it."},
        {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": [call]},
        {"role": "tool", "content": "a\nb", "tool_call_id": "1"},
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
    )
    folder = trials(**{"agent__trajectory.jsonl": lines(*messages), "verifier__test-stdout.txt": "1 passed"})
    trajectory = read(folder, "t")
    assert words(trajectory) == [
        ("user", "", "Do it."),
        ("assistant", "reasoning", "Look."),
        ("assistant", "calls shell_exec", '{"command": "ls"}'),
        ("tool", "", "a\nb"),
        ("assistant", "", "Done."),
    ]
    assert [(heading, text.shown) for heading, text in trajectory.parts] == [
        ("verifier's output", "1 passed")
    ]


def test_harbors_own_format_is_turns_too(trials):
    steps = [
        {"step_id": 1, "source": "user", "message": "Do it."},
        {
            "step_id": 2,
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "Look.",
            "tool_calls": [
                {"tool_call_id": "1", "function_name": "bash", "arguments": {"keystrokes": "ls\n"}}
            ],
            "observation": {"results": [{"content": "a"}]},
        },
    ]
    folder = trials(**{"agent__trajectory.json": json.dumps({"schema_version": "ATIF-v1.6", "steps": steps})})
    assert words(read(folder, "t")) == [
        ("user", "", "Do it."),
        ("assistant", "reasoning", "Look."),
        ("assistant", "", "I look."),
        ("assistant", "calls bash", '{"keystrokes": "ls\\n"}'),
        ("tool", "", "a"),
    ]


def test_the_exception_of_a_broken_trial_is_shown(trials):
    folder = trials(**{"result.json": json.dumps({"exception_info": {"exception_type": "TimeoutError"}})})
    (heading, text), *_ = read(folder, "t").parts
    assert heading == "exception"
    assert "TimeoutError" in text.shown


def test_long_texts_lose_their_middle_and_say_so():
    text = Text.of("a" * 10_000_000 + "end")
    assert text.total == 10_000_003
    assert len(text.shown) < 2 * trajectories.CHARACTERS
    assert text.shown.startswith("aaa")
    assert text.shown.endswith("end")
    assert text.kept < text.total


def test_long_trajectories_lose_their_middle_and_say_so(trials):
    messages = [{"role": "user", "content": f"turn {place}"} for place in range(1000)]
    trajectory = read(trials(**{"agent__trajectory.jsonl": lines(*messages)}), "t")
    shown = [text for _, _, text in words(trajectory)]
    assert shown[0] == "turn 0"
    assert shown[-1] == "turn 999"
    assert trajectory.left_out == 1000 - len(shown)


def test_only_the_beginning_of_a_huge_file_is_read(trials, monkeypatch):
    monkeypatch.setattr(trajectories, "FILE_BYTES", 1000)
    folder = trials(
        **{"agent__trajectory.jsonl": lines({"role": "user", "content": "first"}) + b"x" * 10_000}
    )
    assert words(read(folder, "t")) == [("user", "", "first")]


def test_no_link_is_followed_and_no_pipe_waited_for(trials, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(lines({"role": "user", "content": "secret"}))
    folder = trials(**{"agent__trajectory.jsonl": b"", "verifier__test-stdout.txt": b""})
    for name in ("agent/trajectory.jsonl", "verifier/test-stdout.txt"):
        (folder / "t" / name).unlink()
    (folder / "t" / "agent" / "trajectory.jsonl").symlink_to(secret)
    os.mkfifo(folder / "t" / "verifier" / "test-stdout.txt")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "trajectory.jsonl").write_bytes(secret.read_bytes())
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "agent").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "w" / "agent").mkdir(parents=True)
    (tmp_path / "w" / "agent" / "trajectory.jsonl").write_bytes(secret.read_bytes())
    (tmp_path / "v").symlink_to(folder / "w")
    assert read(folder, "w").turns
    for name in ("t", "u", "v"):
        trajectory = read(folder, name)
        assert (trajectory.turns, trajectory.parts) == ([], [])


@pytest.mark.parametrize("name", ["..", ".", "", "../t", "t/../t", "/etc", None, 7, "t\0", "x" * 5000])
def test_a_name_that_is_no_trials_reads_nothing(trials, name):
    folder = trials(**{"agent__trajectory.jsonl": lines({"role": "user", "content": "here"})})
    assert read(folder, "t").turns
    assert not read(folder, name).turns


def test_control_codes_are_gone_and_what_is_left_can_be_written():
    shown = clean("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x1b(B\x1b\0\r\ny\ud800z\u202e\x9b\U0001f600")
    assert shown == "red x\u241b\u2400\ny\ufffdz\ufffd\ufffd\U0001f600"
    shown.encode()


@given(st.text(st.characters(), max_size=200))
def test_any_text_can_be_shown(text):
    shown = Text.of(text).shown
    shown.encode()
    assert not any(ord(character) < 0x20 and character not in "\n\t" for character in shown)


KEYS = (
    *("role", "content", "text", "type", "tool_calls", "function", "name", "arguments", "reasoning_content"),
    *("source", "message", "observation", "results", "function_name"),
)
ANY = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(ANY, ANY)
def test_any_form_is_read_without_an_error(tmp_path_factory, first, second):
    folder = tmp_path_factory.mktemp("trials")
    (folder / "t" / "agent").mkdir(parents=True)
    (folder / "t" / "agent" / "trajectory.jsonl").write_text(
        json.dumps(first) + "\n" + json.dumps({"message": second})
    )
    (folder / "t" / "agent" / "trajectory.json").write_text(json.dumps({"steps": [first, second]}))
    (folder / "t" / "result.json").write_text(json.dumps({"exception_info": second}))
    read(folder, "t")


@pytest.mark.parametrize("depth", [100, 900, 5_000, 200_000])
def test_deep_nesting_is_read_without_an_error(trials, depth):
    deep = b"[" * depth + b"]" * depth
    message = b'{"message": {"role": "user", "content": ' + deep + b"}}\n"
    read(
        trials(**{"agent__trajectory.jsonl": message, "result.json": b'{"exception_info": ' + deep + b"}"}),
        "t",
    )


def test_binary_is_read_without_an_error(trials):
    noise = bytes(range(256)) * 100
    files = ("agent__trajectory.jsonl", "agent__trajectory.json", "result.json", "verifier__test-stdout.txt")
    trajectory = read(trials(**dict.fromkeys(files, noise)), "t")
    assert not trajectory.turns
    assert trajectory.parts[0][1].total
