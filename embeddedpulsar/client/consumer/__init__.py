"""Consumers and readers: fetching, waiting, acknowledgement, redelivery and listeners.

`dead_letter` has dead letter and retry topics, `topic_group` has consumers and readers of several topics.
"""
