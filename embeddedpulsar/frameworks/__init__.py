"""Brokers and stores for frameworks of jobs, without a server: one module and one extra for each framework.

Each module has classes that its framework takes, and needs that framework installed. A queue of a framework
is a topic with one Shared subscription; a result is the last value of a key in a topic.
"""
