"""Whether the sources of a Miles job take what we pass them, told from their text; nothing of them is imported."""

from recipe.engines.miles.contract.check import lines, report, require

__all__ = ["lines", "report", "require"]
