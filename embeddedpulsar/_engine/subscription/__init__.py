"""Broker-side subscription semantics as one pure state machine, replicated by a journal."""
