"""From sockets to the application: processes, connections and their limits, admission, the end."""
