"""Messages and the one-to-one socket."""
