"""`TableView`, under the name of the module that has it in ``pulsar-client``."""

from embeddedpulsar.client.consumer.table_view import TableView

__all__ = ["TableView"]
