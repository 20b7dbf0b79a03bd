"""The generate function that runs an agent."""

from __future__ import annotations


async def generate(given): ...
