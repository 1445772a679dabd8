"""What runs in the child: seeds, failures, fetching."""
