"""The agent server with the scripted agent in its table, for tests that talk to a real one."""

import sys

from scripted_agent import IMPORT_PATH

from recipe.harbor.agent_server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], agents={"scripted": IMPORT_PATH}))
