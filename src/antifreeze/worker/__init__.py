"""What runs in the child: the main loop, fetching, the journal, the seeds."""
