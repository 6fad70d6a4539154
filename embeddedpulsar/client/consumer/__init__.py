"""Consumers and readers: fetching ahead, waiting, acknowledging, redelivery, listeners.

`dead_letter` has dead letter and retry topics, `topic_group` consumers and readers of several topics.
"""
