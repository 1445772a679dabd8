"""The one-to-one line between the parent and one worker."""
