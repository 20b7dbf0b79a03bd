"""Whatever is sent to our agent server: it answers, and what it can't do is the client's error or in `exit_status`."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fuzzing import ANY, cut, nearly, no_hang, text_of, tried
from hypothesis import example, given
from hypothesis import strategies as st

from recipe.harbor.agent_server import BACKENDS, Trials, create_app
from recipe.harbor.pool import TrialPool
from recipe.harbor.trials import AGENT_ERROR

RUN = {
    "instance_id": "task",
    "base_url": "http://127.0.0.1:1/sessions/1/v1",
    "model": "openai/inkling-small",
    "agent_name": "none",
    "sampling_params": {"max_iterations": 50, "temperature": 1.0},
    "max_seq_len": 4096,
    "session_server_instance_id": "x",
    "session_server_id": "127.0.0.1:1",
    "trial_name": "",
}
FLUSH = {"session_server_instance_id": "x"}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """One task, and an agent that can't be imported: a request that is right gets as far as Harbor, and no further."""
    folder = tmp_path_factory.mktemp("trials")
    (folder / "tasks" / "task").mkdir(parents=True)
    (folder / "tasks" / "task" / "task.toml").touch()
    return Trials(
        folder / "tasks", folder / "trials", BACKENDS["local"], {"none": "no_such_module:Agent"}, 1.0
    )


def bodies(right: dict[str, object]) -> st.SearchStrategy[bytes]:
    return cut(st.one_of(nearly(right), nearly(right), ANY).map(text_of))


POSTS = st.one_of(
    *[st.tuples(st.just(path), bodies(right)) for path, right in (("/run", RUN), ("/flush", FLUSH))],
    st.tuples(st.sampled_from(["/run", "/flush", "/flush_all"]), st.binary(max_size=20)),
)


JSON = {"content-type": "application/json"}
HEADERS = st.sampled_from([JSON, JSON, {}])


@given(posts=st.lists(POSTS, min_size=1, max_size=3), headers=HEADERS)
@example(posts=[("/run", b"\x80")], headers={})
@example(posts=[("/flush", b'{"session_server_instance_id": NaN}')], headers=JSON)
@example(posts=[("/flush", b'{"session_server_instance_id": "\\ud800"}')], headers=JSON)
@tried(60)
def test_any_request_is_answered(trials, posts, headers):
    async def scenario() -> None:
        app = create_app(trials, TrialPool(2))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
            for path, body in posts:
                answer = await http.post(path, content=body, headers=headers)
                assert answer.status_code == 200 or 400 <= answer.status_code < 500
                told = answer.json()
                assert isinstance(told, dict)
                if answer.status_code == 200:
                    assert told["exit_status"] == AGENT_ERROR if path == "/run" else told == {"cancelled": 0}
            assert (await http.get("/health")).json()["active"] == 0

    with no_hang():
        asyncio.run(scenario())
