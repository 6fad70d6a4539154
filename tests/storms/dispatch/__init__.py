"""Simulated consumers of one subscription that do everything in every order."""
