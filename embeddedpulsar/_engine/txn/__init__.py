"""Transactions of a store: their ids and slots, the journal of decisions, and the table of outcomes."""
