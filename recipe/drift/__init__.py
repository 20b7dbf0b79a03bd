"""Compares the pins with this repository, with checkouts and with the network; changes a pin."""
