"""Prompt data, the smoke tasks, and what a scripted policy does in them."""
