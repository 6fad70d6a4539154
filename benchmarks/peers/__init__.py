"""What the same work costs elsewhere; one file per peer."""
