"""Harbor trials on this machine: sandbox, environment, agents, and the server that runs a trial per request."""
