"""The interface of `pulsar-client`: `Client`, and the threads it runs."""
