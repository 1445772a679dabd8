"""The state machine by tables and by a random world; the numbers that decide; the pool around real processes."""
