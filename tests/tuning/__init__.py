"""The decisions of num_workers="auto", as tables and by search; and the cores there are."""
