"""Before the run: rules over the code, which is read and never executed, and probes of the live object.

code      script -> program (classes, loaders, names) -> rules -> findings
live      loader or data set -> probes, the risky ones in a forked child with a deadline -> findings
findings, report: the doctor's own
"""
