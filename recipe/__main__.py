"""`python -m recipe` is the command `recipe`."""

from recipe.cli import main

main()
