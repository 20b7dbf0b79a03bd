"""The model's files: fetched and converted before a run, exported after it."""
