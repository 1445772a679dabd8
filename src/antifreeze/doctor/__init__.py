"""Why is it frozen, why is it slow, what to change.

facts      what is seen of a process tree, without stopping or changing it
findings   what follows from it: pure rules, one per disease
report     the findings as text, JSON, and a page
command    `antifreeze doctor PID`
"""
