"""Whether the sources of a Miles job take what we pass them, told from their text; nothing of them is imported."""
