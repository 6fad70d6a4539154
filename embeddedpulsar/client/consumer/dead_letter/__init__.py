"""Dead letter and retry topics: when a message goes there, and the producers that publish it."""
