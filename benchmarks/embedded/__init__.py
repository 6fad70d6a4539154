"""embeddedpulsar's side of every workload, written against its public API only."""
