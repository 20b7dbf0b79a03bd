"""What every test starts from: an environment without settings, whoever runs the tests."""

from __future__ import annotations

import hypothesis
import pytest

from recipe.settings import Settings

# A busy machine is no failure.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

# Of a minute or more each: begun first where workers share the tests, none keeps the others waiting in the end.
LONG = (
    "test_job.py",
    "test_launch.py",
    "test_cluster_life.py",
    "test_two_hundred_rollouts.py",
    "test_load.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(autouse=True)
def _environment_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "MAKE_VARIABLES",
        "MAKEFLAGS",
        "MAKELEVEL",
        *(field.upper() for field in Settings.model_fields),
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def empty_folder(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """The working directory, without a .env."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
