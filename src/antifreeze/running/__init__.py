"""`antifreeze run` and `%load_ext antifreeze`: an unchanged script, with our DataLoader in the place of torch's."""
