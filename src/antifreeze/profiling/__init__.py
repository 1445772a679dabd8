"""`antifreeze profile`: the user's own data set measured, and one setting recommended.

    workload ──▶ samples (a forked child) ──▶ trials (real loaders, one after another) ──▶ profile ──▶ recommend (pure) ──▶ text, JSON, page

Nothing here judges by a formula where it can measure; the recommendation is a pure function of the measurements.
"""
