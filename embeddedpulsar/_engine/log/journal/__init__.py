"""Journals: how processes keep the small state of a topic or a subscription in step."""
