"""Brokers and stores for frameworks of jobs, one module and one extra for each; no server.

Each module names the classes as its framework does, and needs that framework installed.
"""
