"""Modules shared by producers, consumers and the client.

Argument checks with the texts of ``pulsar-client``, the options of a message, interceptors, the client's
log, and waiting. At run time, no module of this folder imports from the folders beside it.
"""
