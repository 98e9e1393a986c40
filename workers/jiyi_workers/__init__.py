"""The workers: consume the stream of events and keep the index up to date."""
