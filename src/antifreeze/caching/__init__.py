"""Samples of slow storage, kept in local files: `antifreeze.cached`."""
