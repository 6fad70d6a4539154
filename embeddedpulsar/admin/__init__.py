"""Administration of a store: topics are made, grown, listed and deleted."""
