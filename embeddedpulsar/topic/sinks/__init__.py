"""What sinks of Spark keep in a store: staged rows, and which batch was committed last."""
