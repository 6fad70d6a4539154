"""One file per workload; each has `contests(settings)`."""
