"""What follows from the facts: pure rules, no I/O, no clock."""
