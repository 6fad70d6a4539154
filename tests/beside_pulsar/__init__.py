"""The same scenarios run with embeddedpulsar and with a broker of Pulsar, and compared.

``python -m tests.beside_pulsar --service-url pulsar://127.0.0.1:6650 --admin-url http://127.0.0.1:8080``
"""
