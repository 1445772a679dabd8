"""Probes of a live loader or data set."""
