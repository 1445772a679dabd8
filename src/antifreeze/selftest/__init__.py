"""One small program per disease, run on the user's own machine: `antifreeze selftest`.

    command ──names──> runner ──one request──> warden (one per job; imported torch once; subreaper)
                          ^                       │ fork: a fresh process, its own session, folder and TMPDIR
                          │                       v
        verdicts <── judge <──── record ──── program (faults/*.py, given a Trial)
                    (pure)                        └── the loader under test and its workers

 1. A program that is not over at its limit is FROZEN; it and everything it started are killed.
 2. What was delivered is written down batch by batch, so loss and doubling are counted for frozen and killed programs too.
 3. Whatever still lives one second after the program ended was left behind, whoever its parent was.

fault (the table's row), faults/ (the rows) · trial (inside the program) · warden (outside it) · judge, table (pure) · runner · command
"""
