"""What the CAMEL recipe relies on here."""


def disable_logging(): ...


disable_logging()
