"""From resolved batches to what the user's loop receives, in order, with its bad samples dealt with."""
