"""The client of a Pulsar cluster: that of ``pulsar-client``, with the interface of this package.

`embeddedpulsar.connect` makes it. Classes, enumerations, message ids and errors are those of this package,
and so is what ``pulsar-client`` lacks: ``with``, iteration, ``receive_nowait``. What a cluster cannot do
raises `OperationNotSupported`, and so does an option that ``pulsar-client`` does not have.
"""
