"""Contracts: torch's DataLoader against ours on the same inputs. `contract.py` says what "the same" means.

ANTIFREEZE_CONTRACT_CLASS=torch runs the contracts against torch itself, which must keep all but its own promises (`ours_only`);
ANTIFREEZE_CONTRACT_CLASS=torchdata puts torchdata's StatefulDataLoader there, for the contracts of resuming.
"""
