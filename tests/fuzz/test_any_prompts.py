"""Whatever a file of prompts holds: it gives rows, or an error that names it and the lines that are wrong."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from dataclasses import asdict
from pathlib import Path

from fuzzing import ANY, TEXT, cut, nearly, no_hang, text_of, tried
from hypothesis import given
from hypothesis import strategies as st

from recipe.errors import BadInputError
from recipe.tasks.prompts import Row, filter_prompt_data, read_prompt_data, write_prompt_data

RIGHT = {
    "label": "a",
    "prompt": [{"role": "user", "content": "Do it."}],
    "metadata": {"agent_name": "camel", "instance_id": "a", "more": {"n": [1]}},
}
LINES = st.one_of(
    st.sampled_from(["a", "b", "c"]).map(lambda label: text_of(RIGHT | {"label": label})),
    cut(st.one_of(nearly(RIGHT), nearly(RIGHT), ANY).map(text_of)),
    st.binary(max_size=10),
)
FILES = st.lists(LINES, max_size=5).flatmap(
    lambda lines: st.sampled_from([b"\n", b"\n", b"\r\n", b"\n\n", b"\x85", b"\0"]).map(
        lambda end: end.join(lines)
    )
)


@given(FILES, TEXT)
@tried(150)
def test_any_file_gives_rows_or_an_error_with_its_lines(content, match):
    with tempfile.TemporaryDirectory() as folder, no_hang():
        path = Path(folder, "prompts.jsonl")
        path.write_bytes(content)
        try:
            rows = read_prompt_data(path)
        except BadInputError as error:
            of_file = error.facts.get("where") == str(path)
            if not of_file and not re.search(rf"{path}, line \d+$", str(error)):
                raise
            return
        again = path.with_name("again.jsonl")
        write_prompt_data(rows, again)
        assert written(read_prompt_data(again)) == written(rows)
        with contextlib.suppress(BadInputError):
            assert filter_prompt_data(path, match=match)


def written(rows: list[Row]) -> list[str]:
    """As they compare: NaN is not equal to itself."""
    return [json.dumps(asdict(row)) for row in rows]
