"""What is told of the service and its requests: metrics, log lines, traces."""
