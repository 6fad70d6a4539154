"""The pulsar-client API over local topics."""
