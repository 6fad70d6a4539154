"""Named workloads, each beside the peers that can do the same work in the same run."""
