"""What producers, consumers and the client share.

Argument checks with the texts of ``pulsar-client``, the options of a message, interceptors, the client's
log, waiting. Nothing here imports from the folders beside it at run time.
"""
