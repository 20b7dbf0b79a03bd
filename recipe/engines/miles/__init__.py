"""The production engine: settings in, the job of Miles out, checked against the pinned sources."""
