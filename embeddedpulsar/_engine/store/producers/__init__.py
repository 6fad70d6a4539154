"""The producers of a topic, and what is stored under which name.

Two pure tables, kept in step by the topic's journal.
"""
